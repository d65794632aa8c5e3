"""The parts of every page: text, charts, tables, colours, templates, and the file it becomes."""
