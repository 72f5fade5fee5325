"""The command line: one file per verb. Verbs import what they need when they run: `shoal --help` stays quick."""
