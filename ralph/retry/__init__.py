"""The retry loop, its waits, and the choice of the next target. Uses ports only."""
