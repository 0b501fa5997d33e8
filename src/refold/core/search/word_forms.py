"""Inflected forms, stop words and typing errors, by language.

A query's word is searched together with its inflected forms, which are generated from it: `painted` stands for `paint`, `paints` and
`painting` too. A generated form that is no word matches nothing, so the rules may be generous, and no dictionary is needed. The
language of a query is taken from its stop words and its letters; without either it is English, and a word that no message has is
looked for in the forms of all the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from msgspec import Struct

Language: TypeAlias = Literal["en", "de", "fr", "es", "pt", "it", "nl", "ru"]


class _Rules(Struct, frozen=True):
    stop_words: frozenset[str]
    """Normalised, as `terms.words` gives them: without case and accents."""
    endings: frozenset[str] = frozenset()
    """Endings that words take on and off; empty for English, which has rules of its own."""
    letters: frozenset[str] = frozenset()
    """Letters that few other languages use."""
    irregular: tuple[frozenset[str], ...] = ()
    plurals: tuple[tuple[str, str], ...] = ()
    """Endings of a singular and of its plural that replace each other."""
    shortest: int = 4
    """Letters of a stem at least."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENGLISH_STOP = _set(
    """
    a about after again all also am an and any are aren as at be because been before being but by can could couldn d did didn do
    does doesn doing during each for from had hadn has hasn have haven having he her here hers herself him himself his how
    i if in into is isn it its itself just ll m many me might more most much must my myself no nor not now of off on one
    only or other our ours ourselves out over own please re regarding s same shall she should shouldn so some such t tell than that the their
    theirs them themselves then there these they this those through to too under until up upon ve very was wasn we were weren what
    when where which while who whom whose why will with would wouldn you your yours yourself yourselves
    """
)
_ENGLISH_IRREGULAR = tuple(
    map(
        _set,
        """
        go goes went gone going|buy buys bought buying|take takes took taken taking|make makes made making|get gets got gotten getting
        see sees saw seen seeing|run runs ran running|write writes wrote written writing|win wins won winning|teach teaches taught
        child children|feel feels felt feeling|meet meets met meeting|begin begins began begun beginning|eat eats ate eaten eating
        give gives gave given giving|find finds found finding|lose loses lost losing|say says said saying|tell tells told telling
        think thinks thought thinking|leave leaves left leaving|keep keeps kept keeping|hear hears heard hearing|spend spends spent
        swim swims swam swum swimming|drive drives drove driven driving|sing sings sang sung singing|speak speaks spoke spoken speaking
        break breaks broke broken breaking|choose chooses chose chosen choosing|fall falls fell fallen falling|know knows knew known
        grow grows grew grown growing|draw draws drew drawn drawing|man men|woman women|person people persons|foot feet|tooth teeth
        mouse mice|wife wives|life lives|knife knives|half halves|shelf shelves|come comes came coming|become becomes became becoming
        bring brings brought bringing|build builds built building|catch catches caught catching|cut cuts cutting|fly flies flew flown
        forget forgets forgot forgotten forgetting|hold holds held holding|lead leads led leading|pay pays paid paying|put puts putting
        ride rides rode ridden riding|rise rises rose risen rising|sell sells sold selling|send sends sent sending|set sets setting
        show shows showed shown showing|sit sits sat sitting|sleep sleeps slept sleeping|stand stands stood standing
        steal steals stole stolen stealing|throw throws threw thrown throwing|understand understands understood|wake wakes woke woken
        wear wears wore worn wearing|fight fights fought fighting|hide hides hid hidden hiding|hurt hurts hurting|lie lies lay lain lying
        read reads reading|good better best|bad worse worst|index indices indexes|analysis analyses|crisis crises|datum data
        """.replace("\n", "|").split("|"),
    )
)
_RULES: dict[Language, _Rules] = {
    "en": _Rules(
        _ENGLISH_STOP,
        irregular=tuple(one for one in _ENGLISH_IRREGULAR if one),
        plurals=(
            ("lf", "lves"),
            ("af", "aves"),
            ("arf", "arves"),
            ("ief", "ieves"),
            ("ife", "ives"),
            ("man", "men"),
        ),
    ),
    "de": _Rules(
        _set(
            """
            ab aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein deine dem den der des dich die
            dies diese dieser dieses dir doch du durch ein eine einem einen einer eines er es euch euer fur habe haben hat hatte hatten
            hier hinter ich ihm ihn ihnen ihr ihre im in ins ist ja jede jeder jedes kann kein keine mal man mein meine mich mir mit
            nach nicht noch nun nur ob oder ohne schon sehr sein seine sich sie sind so soll uber um und uns unser unter vom von vor
            wann war waren warum was weil welche welcher welches wenn wer werden wie wieder wir wird wo wohin wurde zu zum zur zwischen
            """
        ),
        _set("e en er es em n s st t te ten test tet et end ende enden ung ungen in innen"),
        _set("ä ö ü ß"),
    ),
    "fr": _Rules(
        _set(
            """
            a ai au aux avec avait avez avons c ce ces cet cette ceux chez comme comment d dans de des dont du elle elles en est et
            etait etaient ete etre eu fait il ils j je l la le les leur leurs lui m ma mais me meme mes moi mon n ne nos notre nous on
            ont ou par pas pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se ses si son sont sur t ta te tes
            toi ton tu un une vos votre vous y
            """
        ),
        _set(
            "s x e es ee ees er ez ait ais aient ant ante ants ent ons a ai as i ie is it ir iront era eront re eur eurs"
        ),
        _set("è ê ç œ à ù û î"),
        plurals=(("al", "aux"), ("ail", "aux")),
    ),
    "es": _Rules(
        _set(
            """
            a al ante aqui asi aun bajo cada como con cual cuales cuando cuanto de del desde donde dos e el ella ellas ellos en entre
            era eran es esa esas ese eso esos esta estaba estan estas este esto estos fue fueron ha habia han hasta hay la las le les
            lo los mas me mi mis muy nada ni no nos nosotros o os otra otro para pero por porque que quien quienes se ser si sin
            sobre son su sus tambien te tiene tu tus u un una uno unos y ya yo
            """
        ),
        _set(
            "s es o a os as e ar er ir ado ada ados adas ido ida idos idas ando iendo aba aban ia ian io aron ieron amos emos imos an en ara"
        ),
        _set("ñ ¿ ¡"),
    ),
    "pt": _Rules(
        _set(
            """
            a ao aos as ate com como da das de dela dele deles do dos e ela elas ele eles em entre era essa esse esta estao estava este
            eu foi foram ha isso isto ja la lhe mais mas me mesmo meu minha muito na nao nas nem no nos nossa nosso num numa o onde os
            ou para pela pelo por porque qual quando que quem sao se sem ser seu seus so sobre sua suas tambem te tem tinha um uma voce
            voces
            """
        ),
        _set(
            "s es o a os as e ar er ir ado ada ados adas ido ida idos idas ando endo indo ava avam ia iam ou eu iu aram eram iram amos emos imos am em ao oes"
        ),
        _set("ã õ"),
    ),
    "it": _Rules(
        _set(
            """
            a ad ai al alla alle allo anche c che chi ci come con cosa cui da dal dalla dei del della delle dello di dove e ed era
            erano fra gli ha hai hanno ho i il in io l la le lei li lo loro lui ma mi mia mio ne nei nel nella noi non nostro o per
            perche piu quale quali quando quanto quella quello questa questo sei si sia sono su sua sul sulla suo ti tra tu un una uno
            vi voi
            """
        ),
        _set(
            "o a i e are ere ire ato ata ati ate uto uta uti ute ito ita iti ite ando endo ava avano eva evano iva ano ono iamo erebbe"
        ),
        frozenset(),
    ),
    "nl": _Rules(
        _set(
            """
            aan al alles als altijd andere ben bij daar dan dat de der deze die dit doen door dus een en er ge geen had heb hebben heeft
            hem het hier hij hoe hun iets ik in is ja je kan kon maar me meer men met mij mijn moet na naar niet niets nog nu of om
            ons ook op over reeds te tegen toch toen tot u uit uw van veel voor waar waren was wat we welke werd wie wij wil worden zal
            ze zelf zich zij zijn zo zonder
            """
        ),
        _set("e en s es t te ten de den d er ers end ende ing ingen je jes"),
        frozenset(),
    ),
    "ru": _Rules(
        _set(
            """
            а без более бы был была были было быть в вам вас весь во вот все всего всех вы где да даже для до его ее если есть еще же
            за здесь и из или им их к как какая какие какои ко когда кто куда ли мне мы на над надо наш не него нее нет ни них но о об
            он она они оно от по под почему при про с со так также там те тем то того тоже тои только том ты у уже хотя чего чеи чем
            что чтобы эта эти это этои этом этот я
            """
        ),
        _set(
            "а я ы и у ю е о ь ои еи ом ем ам ям ами ями ах ях ов ев ыи ии ая яя ое ее ые ие ого его ому ему ым им ых их ую юю"
            " ть ти л ла ло ли ет ит ут ют ат ят ешь ишь ал ала али ил ила или"
        ),
        frozenset(),
        shortest=3,  # `нов` of `новая`, `дом` of `дома`
    ),
}
_MONTH_NAMES: tuple[tuple[Language, str], ...] = (
    ("en", "january february march april may june july august september october november december"),
    ("de", "januar februar marz april mai juni juli august september oktober november dezember"),
    ("fr", "janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre"),
    ("es", "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
    ("pt", "janeiro fevereiro marco abril maio junho julho agosto setembro outubro novembro dezembro"),
    ("it", "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"),
    ("nl", "januari februari maart april mei juni juli augustus september oktober november december"),
    ("ru", "январь февраль март апрель маи июнь июль август сентябрь октябрь ноябрь декабрь"),
    ("ru", "января февраля марта апреля мая июня июля августа сентября октября ноября декабря"),
    ("ru", "январе феврале марте апреле мае июне июле августе сентябре октябре ноябре декабре"),
)
_SHORT_NAMES: tuple[tuple[Language, str], ...] = (
    ("en", "jan feb mar apr - jun jul aug sep oct nov dec"),
    ("en", "- - - - - - - - sept - - -"),
    ("de", "jan feb mar apr - jun jul aug sep okt nov dez"),
    ("de", "- - mrz - - - - - sept - - -"),
    ("fr", "janv fevr - avr - - juil - sept oct nov dec"),
    ("fr", "- fev - - - - - - - - - -"),
    ("es", "ene feb mar abr - jun jul ago sep oct nov dic"),
    ("es", "- - - - - - - - sept - - -"),
    ("pt", "jan fev mar abr - jun jul ago set out nov dez"),
    ("it", "gen feb mar apr mag giu lug ago set ott nov dic"),
    ("it", "- - - - - - - - sett - - -"),
    ("nl", "jan feb mrt apr - jun jul aug sep okt nov dec"),
    ("nl", "- - - - - - - - sept - - -"),
    ("ru", "янв фев мар апр - июн июл авг сен окт ноя дек"),
    ("ru", "- февр - - - - - - сент - нояб -"),
)
"""Without the point. `may`, `mai` and `mei` are whole names."""
MONTHS: dict[str, int] = {
    name: month for _, names in _MONTH_NAMES for month, name in enumerate(names.split(), 1)
}
SHORT_MONTHS: dict[str, int] = {
    name: month for _, names in _SHORT_NAMES for month, name in enumerate(names.split(), 1) if name != "-"
}
_OTHER_WORDS = _set("gen mar mag set sett out ago")
"""Short names that are words or names of their own: `3 out of 5`, `a year ago`."""
_BEFORE_MONTH = _set(
    "in of by during since last next early late mid until till before after around im en de em nel a di del в с до"
)
"""Words before a month that is a date, and between its parts."""
_CYRILLIC = re.compile("[\u0430-\u045f]")
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзиклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρσςτυφχψω")
SHORTEST_TYPO = 5
"""Letters of a word in which a typing error is looked for: shorter words are one letter away from many others (`bike`, `bake`)."""
LONGEST_TYPO = 24
_SHORTEST_STEM = 3
_SHORTEST_PLURAL = 2
"""Letters before an ending that a plural replaces: `calf`, `cheval`."""
_VOWELS = "aeiou"


def language_of(query: str, words: Sequence[str]) -> tuple[Language, bool]:
    """Return the language of a query, and whether it shows: most of its stop words are of it, or it has letters of it."""
    lower, held = set(query.casefold()), set(words)
    if _CYRILLIC.search(query.casefold()):
        return "ru", True
    best, most = "en", 0.0
    for name, rules in _RULES.items():
        # Of languages with equally many, the first: English, then by the number of speakers who would type such a query.
        share = len(held & rules.stop_words) + (0.5 if lower & rules.letters else 0.0)
        if share > most:
            best, most = name, share
    return best, most > 0  # type: ignore[return-value]


def is_stop_word(word: str, language: Language) -> bool:
    return word in _RULES[language].stop_words


def is_before_month(word: str) -> bool:
    return word in _BEFORE_MONTH


def is_clear_month(word: str) -> bool:
    """Whether the name of a month is hardly anything else."""
    return word not in _OTHER_WORDS


def month_names(month: int, language: Language) -> list[str]:
    """The names of a month in a language, whole and short."""
    rows = (names.split() for spoken, names in (*_MONTH_NAMES, *_SHORT_NAMES) if spoken == language)
    return [names[month - 1] for names in rows if names[month - 1] != "-"]


@lru_cache(maxsize=4_096)
def forms_of(word: str, language: Language) -> tuple[str, ...]:
    """Return a normalised word and its other forms, the word first. Numbers and very short words have none."""
    if len(word) < _SHORTEST_STEM or not word.isalpha():
        return (word,)
    rules = _RULES[language]
    if language == "en":
        found = set(_english_forms(word)) if word.isascii() else set()
    else:
        found = _forms_by_endings(word, rules)
        if language == "de":
            found |= {form for inner in _without_ge(word) for form in _forms_by_endings(inner, rules)}
    for one, many in rules.plurals:
        for ending, other in ((one, many), (many, one)):
            if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_PLURAL:
                found.add(word.removesuffix(ending) + other)
    for group in rules.irregular:
        if word in group:
            found |= group
    return (word, *sorted(found - {word} - rules.stop_words))


@lru_cache(maxsize=256)
def forms_in_other_languages(word: str, language: Language) -> tuple[str, ...]:
    """Return the forms of a word in all languages but one, without the word itself. One word does not say of which language it is."""
    found = {form for other in _RULES if other != language for form in forms_of(word, other)}
    return tuple(sorted(found - {word}))


def _forms_by_endings(word: str, rules: _Rules) -> set[str]:
    """Every form of the stem: the word without its longest ending."""
    held = [one for one in rules.endings if word.endswith(one) and len(word) - len(one) >= rules.shortest]
    stems = {word, word.removesuffix(max(held, key=len))} if held else {word}
    return {stem + ending for stem in stems for ending in ("", *rules.endings)}


def _without_ge(word: str) -> list[str]:
    """The stem of a German participle: `gemalt` is a form of `malen`."""
    if not word.startswith("ge") or len(word) < _SHORTEST_STEM + 4:
        return []
    return [word[2 : -len(end)] for end in ("t", "en") if word.endswith(end)]


def _english_forms(word: str) -> Iterable[str]:
    for stem in _english_stems(word):
        yield from (stem, f"{stem}s")
        if stem.endswith("e"):
            yield from (f"{stem}d", f"{stem[:-1]}ing", f"{stem[:-1]}ings", f"{stem}r", f"{stem}rs")
        else:
            yield from (f"{stem}ed", f"{stem}ing", f"{stem}ings", f"{stem}er", f"{stem}ers")
        if stem.endswith(("s", "x", "z", "ch", "sh", "o")):
            yield f"{stem}es"
        if stem.endswith("y") and stem[-2:-1] not in _VOWELS:
            yield from (f"{stem[:-1]}ies", f"{stem[:-1]}ied", f"{stem[:-1]}ier")
        if _doubles(stem):
            yield from (f"{stem}{stem[-1]}ing", f"{stem}{stem[-1]}ed", f"{stem}{stem[-1]}er")


def _english_stems(word: str) -> set[str]:
    """The word itself, and what may be left of it without an ending."""
    stems = {word}
    if word.endswith("ies") and len(word) > _SHORTEST_STEM + 1:
        stems.add(f"{word[:-3]}y")
    if word.endswith("es") and len(word) > _SHORTEST_STEM + 1:
        stems |= {word[:-2], word[:-1]}
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        stems.add(word[:-1])
    for ending in ("ing", "ings", "ed", "er", "ers"):
        if word.endswith(ending):
            stem = word.removesuffix(ending)
            if len(stem) < _SHORTEST_STEM or not set(stem) & set("aeiouy"):
                continue
            stems |= {stem, f"{stem}e"}
            if stem[-1] == stem[-2]:
                stems.add(stem[:-1])
            if stem.endswith("i"):
                stems.add(f"{stem[:-1]}y")
    return {stem for stem in stems if len(stem) >= _SHORTEST_STEM and set(stem) & set("aeiouy")} | {word}


def _doubles(stem: str) -> bool:
    """Whether the last consonant is written twice before an ending, as in `running`."""
    return (
        len(stem) >= _SHORTEST_STEM
        and stem[-1] not in f"{_VOWELS}wxy"
        and stem[-2] in _VOWELS
        and stem[-3] not in _VOWELS
    )


@lru_cache(maxsize=32)
def words_one_edit_away(word: str) -> tuple[str, ...]:
    """Return what a word becomes by one typing error: a letter too many, too few, wrong, or two in the wrong order. The first letter
    is taken for right: errors there are rare, and other words many. None for words that are short, or not of one alphabet: a number
    is right or it is another number.
    """
    alphabet = next((one for one in _ALPHABETS if set(word) <= set(one)), "")
    if not alphabet or not SHORTEST_TYPO <= len(word) <= LONGEST_TYPO:
        return ()
    cuts = [(word[:at], word[at:]) for at in range(1, len(word) + 1)]
    found = {head + tail[1:] for head, tail in cuts if tail}
    found |= {head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1}
    found |= {head + letter + tail[1:] for head, tail in cuts if tail for letter in alphabet}
    found |= {head + letter + tail for head, tail in cuts for letter in alphabet}
    return tuple(sorted(found - {word}))
