"""What the outer loop touches: the checkout, the iterations' processes, the check, its record and its lock."""
