"""The facts about servers and models that ralph knows beforehand: models and their prices, vendors, refusals, and the form
of a base URL. No I/O happens here.
"""
