"""The figures of the report, one file each; a file's public function builds its figures from a diagnosis."""
