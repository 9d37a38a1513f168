"""The word pools that prompts are made of, and number words."""

from __future__ import annotations


def _pool(words: str) -> tuple[str, ...]:
    return tuple(words.split())


ITEMS = _pool(
    "apple apricot banana basil beans bread butter cabbage carrot celery cheese cherry chili coffee corn cream "
    "cucumber dates eggs fennel figs flour garlic ginger grapes honey jam kale kiwi leek lemon lettuce lime mango "
    "melon milk mint mustard noodles nuts oats olive onion orange papaya parsley pasta peach pear peas pepper plum "
    "potato pumpkin radish rice salad salt sesame soup spinach squash sugar tea thyme tofu tomato turnip vanilla "
    "vinegar walnut water wheat yam yogurt zucchini"
)

ANIMALS = _pool(
    "badger bear beaver camel cat crow deer dog donkey duck eagle fox frog goat goose hare hedgehog heron horse lion "
    "lizard mole monkey mouse otter owl panda parrot pig rabbit raven sheep snail squirrel swan tiger turtle whale wolf"
)

OBJECTS = _pool(
    "ball basket bell blanket book bottle bucket candle clock coin compass cup drum flute hat kettle key kite ladder "
    "lamp lantern letter map mirror needle pebble pencil ribbon ring rope scarf shell spoon stone telescope umbrella "
    "violin wagon whistle"
)

PLACES = _pool(
    "attic bakery barn beach bridge castle cave cottage desert farm field forest garden harbor hill island lake "
    "library lighthouse market meadow mill mountain museum orchard palace park river school station tower tunnel "
    "valley village windmill"
)

FIRST_NAMES = _pool(
    "Ada Alan Amir Anna Ben Carla Chen Clara Daniel David Diego Elena Emma Eva Farid Felix Grace Hana Hugo Ida Ines "
    "Ivan Jack Julia Karim Kim Laura Leo Lina Lucas Maria Marta Mei Mia Nadia Nina Noah Nora Olga Omar Oscar Paul "
    "Petra Rosa Ruth Sam Sara Sofia Tara Theo Tom Vera Victor Yuki Zoe"
)

LAST_NAMES = _pool(
    "Adams Almeida Baker Berg Brown Castro Clark Costa Diaz Evans Fischer Foster Garcia Gomez Green Haas Hansen "
    "Hill Ito Jensen Jones Kaya Keller Khan King Kovacs Lang Lee Lopez Marino Meyer Moreau Mori Nagy Novak Olsen "
    "Park Patel Petrov Quinn Reed Rossi Santos Sato Silva Singh Smith Stone Tanaka Torres Turner Vogel Walker Wang "
    "Weber White Wolf Young Yilmaz Zhang"
)

CITIES = _pool(
    "Athens Bergen Berlin Bogota Boston Cairo Chicago Dakar Delhi Denver Dublin Geneva Hanoi Havana Helsinki Istanbul "
    "Jakarta Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Milan Montreal Mumbai Nairobi Naples Osaka Oslo Paris "
    "Porto Prague Quito Riga Rome Seoul Seville Sofia Sydney Tokyo Toronto Tunis Vienna Warsaw Zurich"
)

JOBS = _pool(
    "architect baker carpenter chemist cook dentist doctor driver editor engineer farmer gardener lawyer librarian "
    "mechanic musician nurse painter pilot plumber sailor tailor teacher translator waiter"
)

PRODUCTS = _pool(
    "backpack blender camera chair charger desk drill fan guitar headset heater jacket keyboard kettle lamp monitor "
    "mouse phone printer radio router speaker tablet tent toaster vacuum watch"
)

_SMALL = _pool(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = _pool("twenty thirty forty fifty sixty seventy eighty ninety")


def number_words(number: int) -> str:
    """A number from 0 to 9999 in English words, such as "three hundred forty-seven"."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, unit)
    return f"{_SMALL[head]} {name}" + (f" {number_words(rest)}" if rest else "")
