import unittest

from invoice import discounted, total


class InvoiceTest(unittest.TestCase):
    def test_a_discount_is_rounded_half_up(self):
        self.assertEqual(discounted(999, 10), 899)
        self.assertEqual(discounted(995, 10), 896)

    def test_no_discount_changes_nothing(self):
        self.assertEqual(discounted(1234, 0), 1234)

    def test_total_multiplies_by_quantity(self):
        self.assertEqual(total([(250, 2), (100, 3)]), 800)


if __name__ == "__main__":
    unittest.main()
