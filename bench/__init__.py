"""Speed and memory as ratios measured in one run; ``make bench`` prints the table."""
