"""Child processes of one machine and who runs them: pools of workers, schedules, collections of scrapers."""
