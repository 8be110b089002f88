"""Model families: one dense decoder whose families differ by configuration, and the loading of its weights."""
