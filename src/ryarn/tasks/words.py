"""The words of the tasks in miniature: bAbI's (Weston et al. 2015), and more of the same kind."""

from __future__ import annotations

NAMES = (
    *("Mary", "John", "Daniel", "Sandra", "Fred", "Bill", "Jeff", "Julie", "Emily", "Peter"),
    *("Anna", "Oscar", "Clara", "Hugo", "Nora", "Felix", "Ruth", "Simon", "Alice", "Martin"),
    *("Greta", "Victor", "Helen", "Arthur"),
)
"""Who moves; the first four are BABILong's."""
PLACES = (
    *("bathroom", "bedroom", "garden", "hallway", "kitchen", "office", "cinema", "park"),
    *("school", "cellar", "attic", "library", "market", "station", "harbour", "museum"),
    *("stable", "bakery", "chapel", "tower", "castle", "forest", "meadow", "bridge"),
)
"""Where to; the first six are BABILong's."""
MOVES = ("moved to", "went to", "travelled to", "journeyed to")
"""How; bAbI's own."""
FORMS = ("poem", "letter", "story", "song", "riddle", "speech", "report", "prayer")
"""What a conversation asks to be written."""
TOPICS = (
    *("rivers", "apples", "winter", "horses", "clocks", "bread", "ships", "thunder"),
    *("candles", "gardens", "wolves", "copper", "sleep", "bridges", "honey", "glass"),
    *("mountains", "letters", "rain", "shadows", "fire", "wool", "salt", "stars"),
)
"""What about."""
WRITING = (
    *("amber", "angel", "arrow", "autumn", "basket", "bell", "blue", "bone", "brook", "calm"),
    *("cloud", "coal", "cradle", "crown", "dawn", "deep", "distant", "door", "dream", "dust"),
    *(
        "early",
        "ember",
        "empty",
        "evening",
        "feather",
        "field",
        "flame",
        "flower",
        "frost",
        "gentle",
    ),
    *("ghost", "gold", "green", "grey", "hammer", "heart", "hidden", "hollow", "island", "ivory"),
    *("lantern", "leaf", "linen", "little", "lonely", "marble", "mirror", "moon", "moss", "night"),
    *("ocean", "orange", "paper", "pearl", "quiet", "red", "ribbon", "sand", "secret", "silver"),
    *("slow", "smoke", "snow", "soft"),
)
"""What the pieces are made of."""
PREFIXES = ("ka", "lo", "mi", "nu", "pe", "ra", "so", "ti", "vu", "wa", "xe", "zo")
"""Syllables of the code that an answer must begin with."""
