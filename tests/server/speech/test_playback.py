"""The estimate of the gaps that a listener hears."""

from voxcpm_server.speech.timing import Playback


def gaps(*sent: tuple[float, float, int]) -> tuple[int, float]:
    """The number and the length of the gaps of audio (time, length, segment)."""
    playback = Playback()
    for now, seconds, segment in sent:
        playback.sent(seconds, (0, segment), now)
    return playback.underruns, playback.underrun_seconds


def test_audio_that_arrives_in_time_has_no_gap():
    assert gaps((10.0, 1.0, 0), (10.5, 1.0, 0), (11.9, 1.0, 0)) == (0, 0.0)


def test_late_audio_of_a_segment_is_a_gap_after_which_all_is_played_later():
    assert gaps((10.0, 1.0, 0), (11.5, 1.0, 0), (12.4, 1.0, 0), (13.75, 1.0, 0)) == (2, 0.75)


def test_a_pause_before_a_segment_is_none():
    assert gaps((10.0, 1.0, 0), (20.0, 1.0, 1), (20.5, 1.0, 1)) == (0, 0.0)
