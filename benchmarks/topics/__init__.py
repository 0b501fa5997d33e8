"""How well the trigger by a change of topic finds changes, and how long it takes."""
