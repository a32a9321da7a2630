"""Serve an agent over HTTP: every client has its own memory.

The server is the standard library's http.server; use a real one for more than a small team. The handling
of memory is the same in any server:

* each client has a session, so that memories never mix;
* the client opens an episode (``"first": true``). A mid-episode step from an unknown or expired client is
  an error (409): an action from an empty memory would be a silent bug;
* idle sessions expire, and their number is limited.

    python examples/serve_session.py --demo              # trains, serves, talks to itself: half a minute
    python examples/serve_session.py --agent runs/first  # serves a run or a saved agent on port 8000

    POST /act    {"client": "a", "obs": [...], "first": true}  ->  {"action": 1}
    POST /close  {"client": "a"}                               ->  {"closed": true}
    GET  /       ->  {"sessions": 1, "steps": 12}
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gymnasium as gym
import numpy as np

import recollect as rc
from recollect.errors import RecollectError

TASK = {"cues": 4, "horizon": 6}


class RefusedError(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


class Sessions:
    """The live sessions of all clients. One lock: acting takes well below a millisecond."""

    def __init__(self, agent: rc.Agent, *, idle_seconds: float, limit: int):
        self.agent, self.idle_seconds, self.limit = agent, idle_seconds, limit
        self.steps = 0
        self._live: OrderedDict[str, tuple[rc.Session, float]] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def act(self, client: str, obs: Any, first: bool) -> Any:
        """The action for one observation; ``first`` opens an episode."""
        with self._lock:
            self._drop_idle()
            session, _ = self._live.pop(client, (None, 0.0))
            if session is None:
                if not first:
                    raise RefusedError(
                        409, f"no memory of client {client!r}: begin an episode with first=true"
                    )
                session = self.agent.session()
            if first:
                session.reset()
            try:
                action = session.act(obs)
            except RecollectError as error:
                if not first:  # the episode continues; a session whose first step failed is dropped
                    self._live[client] = (session, time.monotonic())
                raise RefusedError(400, str(error)) from None
            self._live[client] = (session, time.monotonic())
            while len(self._live) > self.limit:
                self._live.popitem(last=False)
            self.steps += 1
            return action

    def close(self, client: str) -> bool:
        """Close a client's session. Returns whether it existed."""
        with self._lock:
            return self._live.pop(client, None) is not None

    def count(self) -> int:
        """Live sessions."""
        with self._lock:
            self._drop_idle()
            return len(self._live)

    def _drop_idle(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        while self._live and next(iter(self._live.values()))[1] < oldest:
            self._live.popitem(last=False)


def make_server(agent: rc.Agent, port: int, *, idle_seconds: float, limit: int) -> ThreadingHTTPServer:
    """A server on loopback; port 0 takes a free one."""
    sessions = Sessions(agent, idle_seconds=idle_seconds, limit=limit)

    class Handler(BaseHTTPRequestHandler):
        """Requests as JSON."""

        def do_GET(self) -> None:
            """The number of sessions and steps."""
            self._reply(200, {"sessions": sessions.count(), "steps": sessions.steps})

        def do_POST(self) -> None:
            """``/act`` and ``/close``."""
            try:
                request = self._body()
                if self.path == "/act":
                    obs = from_json(agent.policy.observation_space, request["obs"])
                    action = sessions.act(str(request["client"]), obs, bool(request.get("first", False)))
                    self._reply(200, {"action": to_json(action)})
                elif self.path == "/close":
                    self._reply(200, {"closed": sessions.close(str(request["client"]))})
                else:
                    raise RefusedError(404, f"there is no {self.path}: POST to /act or /close")
            except RefusedError as error:
                self._reply(error.status, {"error": str(error)})
            except (KeyError, TypeError, ValueError) as error:
                self._reply(400, {"error": f"the request cannot be understood: {error!r}"})

        def log_message(self, *_: Any) -> None:
            """Log nothing: one line per step would be too much."""

        def _body(self) -> dict[str, Any]:
            size = int(self.headers.get("Content-Length", 0))
            if size > 10_000_000:
                raise RefusedError(413, "the request is too large")
            return json.loads(self.rfile.read(size))

        def _reply(self, status: int, reply: dict[str, Any]) -> None:
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def from_json(space: gym.Space, value: Any) -> Any:
    """One observation from JSON, in the types of its space."""
    if isinstance(space, gym.spaces.Dict):
        return {key: from_json(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(from_json(sub, part) for sub, part in zip(space.spaces, value, strict=True))
    return int(value) if isinstance(space, gym.spaces.Discrete) else np.asarray(value, space.dtype)


def to_json(action: Any) -> Any:
    """An action as JSON."""
    if isinstance(action, dict):
        return {key: to_json(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return [to_json(part) for part in action]
    return np.asarray(action).tolist()


class Client:
    """The client side: an env that requests actions."""

    def __init__(self, url: str, name: str):
        self.url, self.name = url, name

    def act(self, obs: Any, *, first: bool = False) -> Any:
        """The action for this observation."""
        return self.post("/act", {"client": self.name, "obs": to_json(obs), "first": first})["action"]

    def post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; a status other than 200 raises ``urllib.error.HTTPError``."""
        data = json.dumps(request).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=10) as reply:
            return json.load(reply)


def demo(steps: int) -> None:
    """Train on the delayed cue, serve it, and let three clients play at the same time."""
    agent = rc.train("delayed-cue", steps=steps, seed=0, env_kwargs=TASK)
    server = make_server(agent, 0, idle_seconds=1.0, limit=100)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        print(f"Serving on loopback. Three clients play {(rounds := 20)} episodes each, in turns.")
        clients = [Client(url, f"client {i}") for i in range(3)]
        envs = [gym.make("recollect/DelayedCue-v0", **TASK) for _ in clients]
        right = sum(play_round(clients, envs, seed=100 * i) for i in range(rounds))
        print(f"They saw different cues and got {right:.0f} of {rounds * len(clients)} answers right.")

        obs, _ = envs[0].reset(seed=0)
        clients[0].act(obs, first=True)
        time.sleep(1.5)
        try:
            clients[0].act(obs)
        except urllib.error.HTTPError as error:
            with error:
                print(f"After an idle time: HTTP {error.code}, {json.load(error)['error']}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def play_round(clients: list[Client], envs: list[gym.Env], seed: int) -> float:
    """Play one episode with each client, in turns step by step. Returns all rewards."""
    seen = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    first, total = [True] * len(envs), 0.0
    alive = set(range(len(envs)))
    while alive:
        for i in sorted(alive):
            action = clients[i].act(seen[i], first=first[i])
            seen[i], reward, terminated, truncated, _ = envs[i].step(action)
            first[i], total = False, total + float(reward)
            if terminated or truncated:
                alive.remove(i)
    return total


def main(argv: list[str] | None = None) -> None:
    """Serve an agent, or run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", action="store_true", help="train a small agent, serve it and talk to it")
    parser.add_argument("--steps", type=int, default=150_000, help="env steps of the demo (%(default)s)")
    parser.add_argument("--agent", help="the folder of a run or of a saved agent")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--idle-seconds", type=float, default=600.0, help="idle time of a session")
    parser.add_argument("--limit", type=int, default=1000, help="most sessions; the oldest are closed")
    args = parser.parse_args(argv)
    if args.demo:
        demo(args.steps)
        return
    if args.agent is None:
        parser.error("give --agent FOLDER, or --demo")
    agent = rc.load(args.agent)
    with make_server(agent, args.port, idle_seconds=args.idle_seconds, limit=args.limit) as server:
        print(f"Serving {args.agent} on http://127.0.0.1:{args.port}; Ctrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("closed")


if __name__ == "__main__":
    main()
