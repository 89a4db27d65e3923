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
    *("anchors", "arrows", "axes", "badgers", "barley", "barns", "baskets", "beaches"),
    *("beans", "bears", "beds", "beetles", "bells", "berries", "boats", "bones"),
    *("books", "boots", "bottles", "bowls", "boxes", "branches", "bricks", "brooms"),
    *("buckets", "butter", "buttons", "cabbages", "cakes", "camels", "canals", "caps"),
    *("cards", "carpets", "carts", "castles", "cats", "cattle", "caves", "chains"),
    *("chairs", "chalk", "cheese", "cherries", "chimneys", "cider", "clay", "cliffs"),
    *("coats", "coins", "combs", "cows", "cranes", "crows", "cups", "curtains"),
    *("daisies", "deserts", "dice", "ditches", "dogs", "dolls", "donkeys", "doors"),
    *("dragons", "drums", "ducks", "eagles", "eggs", "elephants", "falcons", "fans"),
    *("farms", "fences", "ferns", "fields", "figs", "flags", "flutes", "fog"),
    *("forests", "forks", "foxes", "frogs", "geese", "giants", "goats", "grapes"),
    *("grass", "gravel", "hares", "harps", "hats", "hawks", "hay", "hedges"),
    *("hens", "herbs", "hills", "hives", "hooks", "islands", "ivy", "jam"),
    *("jars", "jewels", "kettles", "keys", "kings", "kites", "knives", "knots"),
    *("ladders", "lakes", "lamps", "larks", "lemons", "lilies", "lions", "locks"),
    *("maps", "masks", "mice", "mills", "mirrors", "moths", "nets"),
)
"""What about; enough that no two turns of a chat of 2,048 tokens need share one."""
WRITING = (
    *("acorn", "amber", "angel", "arch", "arrow", "autumn", "bamboo", "basket", "beak", "bell"),
    *("blaze", "blue", "bone", "border", "brave", "brine", "brook", "bubble", "calm", "chill"),
    *("circle", "cloud", "coal", "cobalt", "cotton", "cradle", "crimson", "crown", "curl"),
    *("dark", "dawn", "deep", "distant", "door", "dream", "dull", "dust", "early", "elm"),
    *("ember", "empty", "evening", "fallow", "feather", "field", "flame", "flint", "flower"),
    *("free", "frost", "garland", "gentle", "ghost", "glove", "gold", "grand", "green", "grey"),
    *("gull", "hammer", "hazel", "heart", "hidden", "hollow", "hymn", "island", "ivory"),
    *("jewel", "kindle", "lantern", "lattice", "leaf", "lilac", "linen", "little", "lonely"),
    *("loud", "magic", "marble", "mild", "mirror", "moon", "moss", "narrow", "night", "noble"),
    *("ocean", "old", "orange", "pale", "paper", "pearl", "petal", "pollen", "proud", "quick"),
    *("quiet", "red", "reed", "ribbon", "rose", "ruby", "sage", "sand", "secret", "sharp"),
    *("silence", "silver", "slow", "smoke", "smooth", "snow", "soft", "spring", "storm"),
    *("sweet", "tea", "thyme", "trim", "twilight"),
)
"""What the pieces are made of."""
PREFIXES = ("ka", "lo", "mi", "nu", "pe", "ra", "so", "ti", "vu", "wa", "xe", "zo")
"""Syllables of the code that an answer must begin with."""
