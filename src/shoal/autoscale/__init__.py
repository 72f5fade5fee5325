"""How many are needed: what the work and the machine say, and the rule that decides by it."""
