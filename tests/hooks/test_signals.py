"""Signals during training: the first requests a stop, and a second Ctrl-C stops at once."""

import signal

import pytest

from transformer.hooks.endings import Interrupted, Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_requests_a_stop_and_a_second_ctrl_c_stops_at_once(number):
    def earlier(*_) -> None:
        raise AssertionError("the handler from before the block")

    before = signal.signal(number, earlier)
    try:
        with Interruption() as interruption:
            assert not interruption.stop_requested()
            interruption.poll()
            signal.raise_signal(number)
            assert interruption.stop_requested() and interruption.signal == number
            with pytest.raises(Interrupted):
                interruption.poll()
            signal.raise_signal(signal.SIGTERM)  # a machine that shuts down may send several
            assert interruption.signal == number
            with pytest.raises(KeyboardInterrupt, match="stopped without saving"):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(number) is earlier
    finally:
        signal.signal(number, before)
