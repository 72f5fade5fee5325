"""The recipe github: its project, its stand-in, and the scenario that it must survive."""
