from msgspec import Struct, structs

from refold.model.property_cache import cached_property


class Counted(Struct, frozen=True, dict=True):
    number: int
    reads: list[int]

    @cached_property
    def double(self) -> int:
        """Twice the number."""
        self.reads.append(self.number)
        return 2 * self.number


def test_a_value_is_computed_once_for_each_object():
    one = Counted(3, [])
    assert (one.double, one.double, one.reads) == (6, 6, [3])
    other = structs.replace(one, number=4)
    assert (other.double, one.reads) == (8, [3, 4])


def test_the_class_has_the_property_with_its_docstring():
    assert Counted.double.__doc__ == "Twice the number."
