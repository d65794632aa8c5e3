"""The engine "compiled": eight systems side by side in one adaptive loop, for very many small systems."""
