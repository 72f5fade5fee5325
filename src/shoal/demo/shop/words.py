"""The vocabulary of the shop: names, materials and descriptions of the products of each category."""

from __future__ import annotations

import msgspec


class CategorySpec(msgspec.Struct, frozen=True, kw_only=True):
    """One category: its name, the colour of its pictures, and the words for its products.

    `charset` is the encoding of its pages; `charset_in_header` is False where only a meta tag declares it.
    """

    slug: str
    name: str
    code: str
    colour: str
    materials: tuple[str, ...]
    nouns: tuple[str, ...]
    uses: tuple[str, ...]
    charset: str = "utf-8"
    charset_in_header: bool = True


ADJECTIVES = (
    *("Small", "Large", "Slim", "Sturdy", "Quiet", "Folding", "Plain", "Striped"),
    *("Everyday", "Light", "Classic", "Compact", "Rounded", "Tall"),
)

DETAILS = (
    "The edges are finished by hand.",
    "It is lighter than it looks.",
    "All parts can be replaced one by one.",
    "Made in small batches, so the shade varies a little.",
    "It comes in a box of recycled card.",
    "The second one is half the work of the first.",
    "Nothing about it squeaks.",
    "The surface gets better with the years.",
    "It stands on its own and stays where you put it.",
    "Every piece is checked twice before it leaves the workshop.",
)

CARE = (
    "Wipe it with a damp cloth.",
    "Keep it dry and out of the sun.",
    "It may be washed by hand at 30 degrees.",
    "A drop of oil once a year is all it asks for.",
    "No care needed at all.",
    "Let it dry in the open air.",
)

CATEGORIES = (
    CategorySpec(
        slug="kitchen",
        name="Kitchen",
        code="KI",
        colour="#b5533c",
        charset="iso-8859-1",
        materials=("Oak", "Steel", "Copper", "Enamel", "Ash", "Stoneware", "Cast Iron", "Émaillé", "Olive Wood"),
        nouns=(
            *("Sauté Pan", "Crème Brûlée Dish", "Café Press", "Serving Board", "Jalapeño Roaster", "Rösti Grater"),
            *("Mixing Bowl", "Bread Knife", "Pâté Mould", "Colander", "Gewürz Mill", "Rolling Pin"),
        ),
        uses=("a table of four", "long Sunday mornings", "purée and soufflé", "people who cook for friends"),
    ),
    CategorySpec(
        slug="garden",
        name="Garden",
        code="GA",
        colour="#4f7f45",
        materials=("Zinc", "Larch", "Terracotta", "Steel", "Willow", "Cedar", "Copper", "Slate", "Bamboo"),
        nouns=(
            *("Watering Can", "Trowel", "Seed Tray", "Plant Label Set", "Bird Bath", "Trellis", "Planter", "Dibber"),
            *("Hand Rake", "Compost Bin", "Bulb Basket", "Garden Stool"),
        ),
        uses=("a bed of herbs", "the shady corner", "balconies up to 4 m²", "the first warm day"),
    ),
    CategorySpec(
        slug="stationery",
        name="Stationery",
        code="ST",
        colour="#39506e",
        charset="windows-1252",
        charset_in_header=False,
        materials=("Linen", "Cotton Paper", "Kraft", "Brass", "Cork", "Écru", "Leather", "Walnut", "Birch"),
        nouns=(
            *("Notebook", "Letter Set", "Résumé Folder", "Pen Tray", "Desk Pad", "Pocket Diary", "Ink Bottle"),
            *("Envelope Box", "Bookmark Set", "Paper Knife", "Sketch Block", "Stamp Case"),
        ),
        uses=("letters that take a while", "the writer's desk", "lists … and lists of lists", "notes under 5 €"),
    ),
    CategorySpec(
        slug="lighting",
        name="Lighting",
        code="LI",
        colour="#c29a2f",
        materials=("Opal Glass", "Brass", "Linen", "Paper", "Concrete", "Smoked Glass", "Birch", "Steel", "Rattan"),
        nouns=(
            *("Table Lamp", "Pendant", "Reading Light", "Lantern", "Wall Sconce", "Floor Lamp", "Night Light"),
            *("Lamp Shade", "Desk Lamp", "Candle Holder", "String Light", "Clip Light"),
        ),
        uses=("reading after ten", "a hallway without windows", "dinners outside", "the bedside table"),
    ),
    CategorySpec(
        slug="bed-and-bath",
        name="Bed & Bath",
        code="BB",
        colour="#7a6a9b",
        materials=("Linen", "Cotton", "Bamboo", "Wool", "Waffle", "Flannel", "Hemp", "Percale", "Muslin"),
        nouns=(
            *("Bath Towel", "Pillow Case", "Duvet Cover", "Bath Mat", "Wash Cloth", "Throw", "Fitted Sheet"),
            *("Robe", "Laundry Bag", "Blanket", "Soap Dish", "Shower Curtain"),
        ),
        uses=("cold evenings", "guests who stay a week", "beds of 140 by 200 cm", "a slow start"),
    ),
    CategorySpec(
        slug="tools",
        name="Tools",
        code="TO",
        colour="#5b5b5b",
        materials=("Carbon Steel", "Beech", "Chrome", "Hickory", "Brass", "Forged", "Ash", "Titanium", "Nylon"),
        nouns=(
            *("Claw Hammer", "Hand Plane", "Chisel", "Try Square", "Mallet", "Bar Clamp", "Coping Saw", "Spanner"),
            *("Screwdriver", "Spirit Level", "Marking Gauge", "Tool Roll"),
        ),
        uses=("repairs that cannot wait", "joints of ½ inch", "the workshop wall", "small hands and large"),
    ),
    CategorySpec(
        slug="toys-and-games",
        name="Toys & Games",
        code="TG",
        colour="#d0702e",
        materials=("Beech", "Maple", "Felt", "Cardboard", "Cotton", "Lime Wood", "Tin", "Rubber", "Birch"),
        nouns=(
            *("Puzzle", "Marble Run", "Building Blocks", "Card Game", "Spinning Top", "Kite", "Domino Set"),
            *("Train Set", "Stacking Rings", "Memory Game", "Hand Puppet", "Yo-Yo"),
        ),
        uses=("ages 4½ and up", "rainy afternoons", "two players and a judge", "the back seat"),
    ),
    CategorySpec(
        slug="bags",
        name="Bags",
        code="BA",
        colour="#8a5a3b",
        materials=("Canvas", "Waxed Cotton", "Leather", "Felt", "Ripstop", "Denim", "Jute", "Wool", "Cork"),
        nouns=(
            *("Tote", "Backpack", "Weekender", "Belt Bag", "Satchel", "Wash Bag", "Shopper", "Laptop Sleeve"),
            *("Roll Top", "Pannier", "Drawstring Bag", "Coin Purse"),
        ),
        uses=("two nights away", "the market on Saturday", "a 15″ laptop", "everything but the kitchen sink"),
    ),
    CategorySpec(
        slug="camping",
        name="Camping",
        code="CA",
        colour="#3f7d7b",
        materials=("Titanium", "Canvas", "Ripstop", "Enamel", "Down", "Aluminium", "Merino", "Steel", "Bamboo"),
        nouns=(
            *("Mug", "Sleeping Mat", "Tarp", "Camp Stove", "Kettle", "Head Torch", "Hammock", "Dry Bag"),
            *("Camp Chair", "Tent Peg Set", "Spork", "Water Bottle"),
        ),
        uses=("nights down to 5 °C", "three days on foot", "the first tent", "wet weather"),
    ),
    CategorySpec(
        slug="tea-and-coffee",
        name="Tea & Coffee",
        code="TC",
        colour="#6b4a2f",
        materials=("Porcelain", "Glass", "Cast Iron", "Copper", "Bamboo", "Stoneware", "Steel", "Cherry", "Clay"),
        nouns=(
            *("Teapot", "Dripper", "Hand Grinder", "Tea Strainer", "Espresso Cup", "Milk Jug", "Tea Caddy"),
            *("Kettle", "Coffee Scoop", "Filter Stand", "Saucer Set", "Matcha Whisk"),
        ),
        uses=("the second cup", "water at 80 °C", "an office of one", "a pot for six"),
    ),
    CategorySpec(
        slug="wool-and-yarn",
        name="Wool & Yarn",
        code="WY",
        colour="#a8476b",
        materials=("Merino", "Alpaca", "Mohair", "Cotton", "Linen", "Lambswool", "Silk", "Cashmere", "Shetland"),
        nouns=(
            *("Sock Yarn", "Lace Yarn", "Chunky Skein", "Sweater Kit", "Mitten Kit", "Needle Roll", "Cone", "Hank"),
            *("Shawl Kit", "Roving", "Hat Kit", "Mini Skeins"),
        ),
        uses=("needles of 3½ mm", "winter in the north", "a first sweater", "patterns with many colours"),
    ),
    CategorySpec(
        slug="storage",
        name="Storage",
        code="SR",
        colour="#4a6d8c",
        materials=("Oak", "Wire", "Felt", "Rattan", "Cardboard", "Steel", "Pine", "Seagrass", "Plywood"),
        nouns=(
            *("Basket", "Crate", "Shelf Box", "Drawer Divider", "Coat Hook", "Shoe Rack", "Magazine File", "Tray"),
            *("Lidded Box", "Wall Shelf", "Peg Board", "Trunk"),
        ),
        uses=("the cupboard under the stairs", "things without a place", "shelves of 30 by 40 cm", "letters and keys"),
    ),
)

OUTLET = CategorySpec(
    slug="outlet",
    name="Outlet",
    code="OU",
    colour="#9b2f2f",
    materials=("Oak", "Zinc", "Linen", "Canvas", "Glass", "Felt"),
    nouns=("Planter", "Table Lamp", "Crate", "Throw", "Tote", "Teapot"),
    uses=("whoever comes first", "a good cause", "spare rooms"),
)
