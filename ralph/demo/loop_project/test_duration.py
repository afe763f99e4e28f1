import unittest

from duration import as_seconds, as_text


class DurationTest(unittest.TestCase):
    def test_text_from_an_hour_on_has_no_seconds(self):
        self.assertEqual(as_text(3725), "1h02m")

    def test_minutes_and_seconds_are_read(self):
        self.assertEqual(as_seconds("3m12s"), 192)


if __name__ == "__main__":
    unittest.main()
