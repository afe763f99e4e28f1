"""Invoices: amounts are whole cents, rates are percentages."""


def discounted(cents, percent):
    """The price after a discount of `percent`, rounded half up to whole cents."""
    return cents - cents * percent // 100


def total(lines):
    """The price of all lines. Each line is a pair of cents and a quantity."""
    return sum(cents * quantity for cents, quantity in lines)
