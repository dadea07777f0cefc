"""`async for` over a consumer: when the loop is woken, who gets what, and that nobody is left behind."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import tensor_pool as tp

DEADLINE_S = 20.0
FRAME = np.zeros(16, np.uint8)


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop went round."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        type(self).turns += 1
        return super().select(timeout)


@pytest.fixture
def producer(stack_session: tp.Session) -> Iterator[tp.Producer]:
    with stack_session.producer(10_000, shape=16, slots=64) as producer:
        yield producer


@pytest.fixture
def consumer(stack_session: tp.Session, producer: tp.Producer) -> Iterator[tp.Consumer]:
    with stack_session.consumer(10_000, wait=10.0) as consumer:
        yield consumer


def run(main: Coroutine[Any, Any, None], selector: selectors.BaseSelector | None = None) -> None:
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selector or selectors.DefaultSelector())

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_loop_whose_reader_is_busy_elsewhere_rests(producer: tp.Producer, consumer: tp.Consumer) -> None:
    async def main() -> None:
        for _ in range(3):
            producer.publish(FRAME)
        seqs = []
        CountingSelector.turns = 0
        async for frame in consumer:
            seqs.append(frame.seq)
            # frames wait meanwhile, and the descriptor is readable all the time
            await asyncio.sleep(0.1)
            if len(seqs) == 3:
                break
        assert seqs == [0, 1, 2]
        assert CountingSelector.turns < 100

    run(main(), CountingSelector())


def test_iterating_again_after_a_break_goes_on_with_the_next_frame(producer: tp.Producer, consumer: tp.Consumer) -> None:
    async def main() -> None:
        for seq in range(5):
            asyncio.get_running_loop().call_later(0.02, producer.publish, FRAME)
            async for frame in consumer:
                assert frame.seq == seq
                break

    run(main())


def test_a_task_that_is_cancelled_takes_nothing_from_the_others(producer: tp.Producer, consumer: tp.Consumer) -> None:
    seqs: list[int] = []
    note = seqs.append

    async def read() -> None:
        async for frame in consumer:
            note(frame.seq)

    async def main() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.sleep(0)
        for cancelled in (None, tasks[0]):
            if cancelled is not None:
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
            before = len(seqs)
            for _ in range(10):
                producer.publish(FRAME)
            await until(lambda before=before: len(seqs) == before + 10)  # type: ignore[misc]
        tasks[1].cancel()
        assert sorted(seqs) == list(range(20))

    run(main())


def test_a_reader_of_the_descriptor_and_an_iteration_do_not_disturb_each_other(producer: tp.Producer, consumer: tp.Consumer) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        loop.add_reader(consumer.fileno(), heard.set)
        producer.publish(FRAME)
        async for frame in consumer:
            assert frame.seq == 0
            break
        await heard.wait()
        while consumer.read(0) is not None:
            pass
        heard.clear()
        producer.publish(FRAME)
        await heard.wait()
        assert loop.remove_reader(consumer.fileno())

    run(main())


def test_closing_ends_every_iteration_that_waits(consumer: tp.Consumer) -> None:
    async def read() -> None:
        async for _ in consumer:
            raise AssertionError("nothing was published")

    async def main() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.sleep(0.02)
        consumer.close()
        await asyncio.gather(*tasks)

    run(main())
