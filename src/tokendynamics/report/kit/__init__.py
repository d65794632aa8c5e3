"""What every page is made of: text, charts, tables, colours, templates, and the file it becomes."""
