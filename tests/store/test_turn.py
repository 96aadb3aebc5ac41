"""The turn: in the order in which it was asked for, by threads and by processes."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from labelquorum.store.database.sqlite_wal import WriteAheadLog
from labelquorum.store.turn import Turn


def test_threads_have_the_turn_in_the_order_in_which_they_asked():
    turn, order, threads = Turn(), [], []

    def take(number):
        with turn, turn:  # it is re-entrant
            order.append(number)

    with turn:
        for number in range(20):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            while len(turn._waiting) <= number:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(20))


def test_one_at_a_time_has_the_turn():
    turn, inside, most = Turn(), [], []

    def work():
        for _ in range(200):
            with turn:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 1600


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_queue():
    turn, held, done = Turn(), threading.Event(), threading.Event()

    def hold():
        with turn:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    main = threading.main_thread().ident
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt), turn:
        pass
    assert not turn._waiting
    done.set()
    thread.join()
    with turn:
        assert turn._depth == 1


LOOP = """
import sys, time
from pathlib import Path
from labelquorum.store.database.sqlite_wal import WriteAheadLog
file = Path(sys.argv[1])
log = WriteAheadLog(file, joined=True)
with file.with_suffix(".count").open("ab", buffering=0) as count:
    while True:
        with log.turn():
            count.write(b".")
            time.sleep(0.002)
"""


def test_a_process_that_writes_in_a_loop_gives_the_turn_to_another(tmp_path):
    file, count = tmp_path / "labelquorum.db", tmp_path / "labelquorum.count"
    log, turns = WriteAheadLog(file), []
    with subprocess.Popen([sys.executable, "-c", LOOP, str(file)]) as other:
        try:
            while not count.exists() or count.stat().st_size < 3:
                time.sleep(0.01)
            for _ in range(150):
                before = count.stat().st_size
                with log.turn():
                    turns.append(count.stat().st_size - before)
                time.sleep(0.003)
        finally:
            other.kill()
    log.close()
    assert sorted(turns)[-3] <= 2  # one may have begun while this process asked
