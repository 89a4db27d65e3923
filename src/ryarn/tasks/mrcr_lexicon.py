"""The words that the grammar of MRCR-like conversations writes with."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


FORMS = _phrases(
    "poem, letter, short story, song, speech, blog post, news report, diary entry, travel note, "
    "scene of a play"
)
"""What a conversation asks to be written."""
TOPICS = _words(
    """
    anchors ants apples attics balloons barns beavers bells bicycles blankets bridges buttons
    cacti candles canals caravans castles caves chimneys clocks clouds comets compasses coral
    cranes deserts dice donkeys drums eclipses elevators envelopes falcons feathers fences ferries
    fireworks foxes fountains gardens geysers glaciers gloves goats guitars hammocks
    harbours hedges helmets horses icicles islands jackets jigsaws kettles keys kites ladders
    lanterns leaves lighthouses lizards looms magnets maps marbles markets mirrors moths museums
    mushrooms nets orchards otters owls oxen paddles parades pebbles pianos pigeons puddles quilts
    radios rafts ravens reefs riddles rivers robots ropes saddles shadows sheep ships skates
    snails spiders staircases storms swings tapirs tents tides trains tunnels turnips umbrellas
    valleys violins volcanoes walnuts waterfalls whistles windmills wolves yaks zebras
    """
)
"""What about."""
NAMES = _words(
    """
    Agnes Barnaby Cecil Dorothea Edmund Florence Gideon Harriet Ignatius Josephine Kasimir Lavinia
    Magnus Nell Ottilie Percival Quentin Rosalind Silas Tabitha Ulrich Violet Winifred Xavier
    Yolanda Zachary Beatrix Clement Drusilla Ezekiel Fenella Gustav Hester Isadora Jasper Katya
    Leopold Mabel
    """
)
NOUNS = _words(
    """
    accordion acrobat admiral album alibi almanac ambulance anthem apprentice aquarium archer
    armchair atlas auction avalanche axle bakery balcony ballad bandage banjo banker baron barrel
    basket battery beacon bishop blizzard bonfire bookshelf bottle bouquet boxer brewer bucket
    bugle butcher cabbage cabin calendar camel canary carpenter carriage cathedral cellar
    chandelier chemist choir cobbler cook crocodile crossroads crown curtain customs detective
    diamond diplomat dragonfly drawer dressmaker druggist duchess dungeon easel elm engine evening
    exile fiddle fisherman flask flood florist footman forge fortune fugitive gallery gardener
    geologist glove gondola governor grammar granary grocer guardian gypsum hailstorm harp harvest
    hatch hermit highway hinge hornet hourglass hunter hymn innkeeper invoice ivy jacket jeweller
    jockey joiner journal judge juggler kennel kiln kitchen knight labyrinth lagoon landlord lark
    lawyer ledger lemon library locket lodger lumberjack machine magician magistrate mandolin
    manuscript marquee mason mattress mechanic meadow medal merchant miller minister monk monument
    mule mustard narrator needle nephew notary nunnery oarsman oboe orphan oven oyster painter
    palace parachute parcel parrot passport pastry peacock pendulum pilgrim pillow pirate plumber
    poet porter postcard potter prophet puppet pyramid quarrel quarry quartet queen quill quiver
    rabbit raincoat razor recipe regiment rehearsal rifle rosary rudder sailor salmon sausage
    scaffold scarecrow scholar sculptor secretary sergeant shepherd shoemaker signature skeleton
    skylight smuggler soldier sparrow squirrel stationmaster stove suitcase surgeon swimmer tailor
    tavern teapot telegram telescope thief thimble thunder ticket toboggan treasurer trumpet
    turnstile typewriter uncle usher vagabond vase vaulter verdict vineyard visitor voyage waiter
    wardrobe watchman weaver wedding whale wizard woodcutter wrestler yacht zeppelin zither
    """
)
ADJECTIVES = _words(
    """
    absent amiable ancient anxious awkward bashful beloved bewildered bitter blind boisterous
    brittle broken careless cautious ceremonious cheerful clumsy costly crooked curious damp
    dazzling deaf delicate desperate dignified drowsy dusty eager earnest eccentric elegant
    enormous exhausted faithful famous feverish fierce foolish forgotten fragile frugal generous
    gloomy graceful grateful hasty haughty homesick honest hungry idle immense impatient infamous
    jealous jovial keen lame lonely loyal lucky magnificent melancholy merciful mischievous modest
    muddy narrow neglected nervous notorious obedient obstinate peculiar penniless perplexed pious
    pompous precious proud quaint quarrelsome reckless reluctant ridiculous rusty sceptical shabby
    shivering sleepless solemn stubborn sullen superb suspicious tardy tender timid tireless vain
    vanished vexed weary whimsical wicked wistful witty wooden zealous
    """
)
DEEDS = _words(
    """
    abandoned accused admired annoyed auctioned banished befriended begged blessed borrowed bribed
    buried burned calmed carved chased christened claimed cleaned comforted concealed copied
    counted cursed deceived defended delayed described despised discovered dismissed disturbed
    drew dropped duped embraced emptied encouraged envied escorted exchanged excused fetched
    flattered followed forgave forged framed frightened gathered glimpsed greeted guarded haunted
    hid hired honoured hugged hunted ignored imitated inherited insulted invited joined judged
    kidnapped kissed knew lifted locked lost lowered married measured mended mistook mocked
    mourned named nursed obeyed outwitted overheard packed painted pardoned pawned polished
    praised protected pursued questioned quoted ransomed recognised refused remembered repaired
    rescued returned robbed saluted saved scolded searched shadowed sheltered sketched smuggled
    sold startled stole surprised taught teased thanked threatened trusted unmasked upset vexed
    visited warned washed watched weighed welcomed whitewashed woke wrapped wronged
    """
)
HAPPENINGS = _phrases(
    """
    agreed, apologised, arrived, blushed, bowed, complained, confessed, crumbled, danced,
    departed, despaired, disappeared, dozed, exploded, fainted, fell silent, flickered, froze,
    galloped past, giggled, glittered, groaned, grumbled, hesitated, howled, hummed, jumped, kept
    still, knelt, laughed, leaked, limped away, lingered, lost patience, melted, mumbled, never
    returned, objected, overslept, perspired, prayed, quivered, raged, rattled, recovered,
    rejoiced, resigned, ripened, rolled over, sang, shrugged, sighed, sizzled, slept on,
    smouldered, sneezed, snored, sobbed, stumbled, sulked, surrendered, swayed, swore, took
    flight, trembled, tumbled down, turned blue, vanished, wept, went home, whispered, whistled,
    winked, withdrew, wobbled, yawned, yielded
    """
)
PLACES = _phrases(
    """
    above the bakery, across the frontier, along the towpath, among the ruins, at the abbey gate,
    at the crossing, at the foot of the stairs, at the mill, at the opera, at the quay, before the
    altar, behind the waterworks, below the dam, beneath a plum tree, beside the bandstand,
    between two haystacks, beyond the orchard, by the weighbridge, down in the vault, in a
    borrowed tent, in a foreign port, in the ballroom, in the belfry, in the dovecote, in the
    greenhouse, in the laundry, in the mayor's study, in the observatory, in the pantry, in the
    waiting room, near the gasworks, near the zoo, on a raft, on the back stairs, on the ferry, on
    the gravel path, on the parade ground, on the roof, on the veranda, outside the pawnshop, over
    the ravine, past the tollhouse, round the maypole, through the turnpike, under the viaduct, up
    in the crow's nest, upon the jetty, within the stockade
    """
)
TIMES = _phrases(
    """
    a week before Easter, after the eclipse, all through Lent, at daybreak, at half past four, at
    nightfall, before the frost, between two trains, by candlelight, during the regatta, every
    other Friday, for nine days, for want of rain, in a leap year, in broad daylight, in
    mid-January, in the dead of night, in the third act, just before supper, long ago, not before
    Michaelmas, on Ash Wednesday, on Midsummer Eve, on pay day, once a quarter, one Sunday in
    June, since the flood, sooner than expected, the year of the comet, towards morning, twice a
    year, until the thaw, when the lamps were lit, within the hour, without a word, with both
    hands
    """
)
OPENINGS = _phrases(
    """
    After that, All the same, As a rule, As it happened, At first, At length, Before long, By
    chance, Curiously enough, Even so, For once, From then on, In his place, In other years, In
    secret, In the end, Little by little, Luckily, Meanwhile, Much later, Naturally, Nevertheless,
    Next, Now and then, Of course, On a whim, On reflection, Once more, Out of spite, Quite
    unexpectedly, Rumour has it that, Sadly, Still, Strange to say, That winter, To be sure,
    Towards the end, Unlike the others, Up to a point, With some reluctance, Year after year, Yet
    """
)
SPEECH = _words(
    """
    announced answered argued asked boasted called cried declared explained exclaimed insisted
    murmured muttered observed pleaded promised protested remarked repeated replied roared shouted
    snapped stammered suggested vowed wailed wrote
    """
)
