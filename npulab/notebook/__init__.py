"""Pictures, widgets and sessions: the ways in which people look at captures and answers."""
