"""What every process of this package runs on: agents and their threads, timers, signals, and where the stack of a user is found."""

from tensor_pool.runtime.agent import Agent, AgentInvoker
from tensor_pool.runtime.description import StackDescription, find_stack
from tensor_pool.runtime.directory import RuntimeDirectory
from tensor_pool.runtime.lock import DirectoryLock
from tensor_pool.runtime.runner import AgentRunner, RunnerStats
from tensor_pool.runtime.signals import ShutdownSignal
from tensor_pool.runtime.timers import PeriodicTimer

__all__ = [
    "Agent",
    "AgentInvoker",
    "AgentRunner",
    "DirectoryLock",
    "PeriodicTimer",
    "RunnerStats",
    "RuntimeDirectory",
    "ShutdownSignal",
    "StackDescription",
    "find_stack",
]
