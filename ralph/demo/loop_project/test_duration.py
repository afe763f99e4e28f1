import unittest

from duration import as_seconds, as_text


class DurationTest(unittest.TestCase):
    def test_text_from_an_hour_on_has_no_seconds(self):
        self.assertEqual(as_text(3725), "1h02m")

    def test_text_pads_the_seconds(self):
        self.assertEqual(as_text(65), "1m05s")

    def test_minutes_and_seconds_are_read(self):
        self.assertEqual(as_seconds("3m12s"), 192)

    def test_hours_are_read(self):
        self.assertEqual(as_seconds("1h02m"), 3720)

    def test_what_is_no_duration_is_refused(self):
        with self.assertRaises(ValueError):
            as_seconds("soon")


if __name__ == "__main__":
    unittest.main()
