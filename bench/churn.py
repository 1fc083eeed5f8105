"""Rounds of faults on an elastic training: how long survivors need for their next step.

Each round brings the job to its full size, waits for a random moment, injects one fault, and measures
the time from the fault to the end of the survivors' next step, which the first of them prints. A round
without a step within --patience seconds is a hang. With --finish the job then trains on to its last step,
and another one without faults tells which loss was to be expected.

With --own, what follows -- is the command of one rank, in which {folder} stands for a new folder. It prints
the lines of an elastic training on stderr, and its last loss as JSON on stdout. Where it records its
samples in {folder}/record, they are checked (samples.py).
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import samples

STEP = re.compile(
    r"epoch (?P<epoch>\d+)(?: after step \d+)?: (?P<ranks>\d+) ranks?(?:, \d+ of them new)?; (?:"
    r"step \d+ ended (?P<after>\S+ \S+) after the one before"  # of PyTorch and MindSpore
    r"|(?P<until>\S+ \S+) until its first step ended)"  # of the native trainer
)
BEGIN = re.compile(r"^(epoch|training) ")
CALM_S = 0.2


class Process:
    """A process whose lines are kept with the time at which they came."""

    def __init__(self, command, environment):
        self.begun = time.time()
        self.ended = None
        self.lines = []
        self.printed = ""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.popen = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)
        threading.Thread(target=self.read, daemon=True).start()
        self.printer = threading.Thread(target=self.print, daemon=True)
        self.printer.start()

    def print(self):
        self.printed = self.popen.stdout.read()

    def read(self):
        for line in self.popen.stderr:
            self.lines.append((time.time(), line.rstrip()))
        self.popen.wait()
        self.ended = time.time()

    def lives(self):
        return self.popen.poll() is None

    def kill(self):
        self.popen.send_signal(signal.SIGKILL)

    def report(self):
        """The report that the process has printed, if it has."""
        self.printer.join()
        lines = self.printed.splitlines()
        return json.loads(lines[-1]) if lines else None


def training(args, ranks):
    """The command of a training of so many ranks, before the flags of the user."""
    return [args.thinwire, "train", "--ranks", ranks, "--report", "none"]


def place(args, host):
    """Prefix that runs a command on a host, and the host's address."""
    if not args.namespaces:
        return [], "127.0.0.1"
    return ["ip", "netns", "exec", f"{args.namespaces}-{host}"], f"10.77.0.{host + 1}"


class Job:
    """An elastic training: a coordinator, and members that are started by hand."""

    ranks_each = 1

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.members, self.gone, self.heal = [], [], None
        self.address = f"{place(args, args.world)[1]}:{random.randrange(20000, 30000)}"
        self.environment = {
            "THINWIRE_COORDINATOR": self.address,
            "THINWIRE_TOKEN": "measured between namespaces",
            "THINWIRE_MEMBER": "new",
            "LOCAL_WORLD_SIZE": str(args.world),
        }
        self.coordinate()

    def coordinate(self):
        command = [*place(self.args, self.args.world)[0], self.args.thinwire, "coordinator"]
        command += ["--listen", self.address, "--ranks", f"1:{self.args.world}"]
        command += ["--state", f"{self.folder}/state"]
        self.coordinator = Process(command, self.environment)

    def start(self):
        taken = {member.host for member in self.members if member.lives()}
        host = next(host for host in range(self.args.world) if host not in taken)
        command = [*place(self.args, host)[0], *self.command()]
        self.members.append(Process(command, self.environment))
        self.members[-1].host = host

    def command(self):
        """The command of one rank."""
        if self.args.own:
            return [word.replace("{folder}", self.folder) for word in self.args.flags]
        command = training(self.args, f"1:{self.args.world}")
        if self.args.fault != "checkpoint":
            command += ["--checkpoint-dir", "none"]
        else:
            command += ["--checkpoint-dir", f"{self.folder}/kept", "--checkpoint-every", "3"]
        return command + self.args.flags

    def lines(self):
        every = [line for member in self.members + self.gone for line in member.lines]
        return sorted(every)

    def next_step(self, since):
        """The first step of an epoch that ended after `since`: when, the epoch and its ranks."""
        for at, line in self.lines():
            match = STEP.search(line)
            if match and at > since:
                return at, int(match["epoch"]), int(match["ranks"])
        return None

    def wait(self, patience, condition, *arguments):
        until = time.time() + patience
        while time.time() < until:
            found = condition(*arguments)
            if found:
                return found
            time.sleep(0.005)
        return None

    def fill(self):
        """Starts members up to the full size, and waits until all of them train."""
        if self.heal:
            # The place of a rank that was silent was taken from it; it comes back as a newcomer.
            since = time.time()
            self.heal()
            self.heal = None
            if not self.wait(60, self.is_full, since):
                raise SystemExit(f"a silent rank did not come back: {self.lines()[-5:]}")
        while True:
            self.gone += [member for member in self.members if not member.lives()]
            self.members = [member for member in self.members if member.lives()]
            missing = self.args.world // self.ranks_each - len(self.members)
            if missing == 0:
                return
            since = time.time()
            for _ in range(missing):
                self.start()
            if not self.wait(60, self.is_full, since):
                raise SystemExit(
                    f"the job did not come to {self.args.world} ranks: {self.lines()[-5:]}"
                )

    def is_full(self, since):
        ranks = f" {self.args.world} ranks"
        return any(at > since and BEGIN.search(line) and ranks in line for at, line in self.lines())

    def first(self):
        """The member that speaks: rank 0."""
        return max(self.members, key=lambda member: member.lines[-1][0] if member.lines else 0)


class LaunchedJob(Job):
    """An elastic training of launchers with two ranks each, whose coordinator's state is in etcd."""

    ranks_each = 2

    def coordinate(self):
        """Starts etcd, which stays; any launcher hosts the coordinator."""
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.store = f"etcd://{client.removeprefix('http://')}/churn"
        self.environment = {"THINWIRE_TOKEN": f"{random.getrandbits(128):032x}"}
        command = ["etcd", "--data-dir", f"{self.folder}/etcd", "--initial-cluster"]
        command += [f"default={peer}", "--initial-advertise-peer-urls", peer]
        command += ["--listen-peer-urls", peer, "--listen-client-urls", client]
        self.coordinator = Process([*command, "--advertise-client-urls", client], {})
        # It says so once it serves its clients.
        if not self.wait(60, self.is_there):
            raise SystemExit("etcd did not start")

    def is_there(self):
        return any("serving insecure client requests" in line for _, line in self.coordinator.lines)

    def start(self):
        command = [*training(self.args, f"1:{self.args.world}"), "--checkpoint-dir", "none"]
        command += ["--local-ranks", str(self.ranks_each), "--store", self.store]
        self.members.append(Process(command + self.args.flags, self.environment))

    def leader(self):
        """The launcher that hosts the coordinator: the last one that has said so."""
        return max(self.members, key=self.led)

    def led(self, member):
        leads = "this process coordinates the job"
        return max((at for at, line in member.lines if leads in line), default=0)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def inject(job, fault):
    """Injects a fault; returns its time and how many ranks continue."""
    victims = random.sample(job.members, 2)
    if fault == "etcd":
        victims = [job.leader()]
    elif fault in ("kill", "validation", "checkpoint"):
        victims = victims[:1]
    elif fault == "zero":
        victims = [job.first()]
    elif fault == "stop":
        victims[0].popen.send_signal(signal.SIGSTOP)
        job.heal = lambda: victims[0].popen.send_signal(signal.SIGCONT)
        return time.time()
    elif fault == "cut":
        device = ["ip", "-n", place(job.args, victims[0].host)[0][-1], "link", "set", "eth0"]
        subprocess.run([*device, "down"], check=True)
        job.heal = lambda: subprocess.run([*device, "up"], check=True)
        return time.time()
    elif fault == "pair":
        hosts = [place(job.args, victim.host) for victim in victims]
        cuts = [(a[0][-1], b[1]) for a, b in (hosts, hosts[::-1])]

        def route(verb):
            for namespace, address in cuts:
                command = ["ip", "-n", namespace, "route", verb, "blackhole", address]
                subprocess.run(command, check=True)

        route("add")
        job.heal = lambda: route("delete")
        return time.time()
    elif fault == "coordinator":
        job.coordinator.kill()
        job.coordinator.popen.wait()
        time.sleep(random.uniform(0, 1))
        job.coordinate()
        victims = victims[:1]
        time.sleep(random.uniform(0, 1))
    elif fault == "reform":
        victims[0].kill()
        time.sleep(random.uniform(0, 0.15))
        victims = victims[1:]
    elif fault == "handover":
        victims[0].kill()
        victims[0].popen.wait()  # its host is free then
        job.wait(10, job.next_step, time.time() - 1)
        job.start()
        # A joiner begins with its codecs' measurements and the text; then it knocks.
        time.sleep(random.uniform(0.3, 1.2))
        victims = [random.choice([victims[1], job.members[-1]])]
    at = time.time()
    for victim in victims:
        victim.kill()
    return at


def rounds(job, args):
    pauses, hangs = [], 0
    for number in range(args.rounds):
        job.fill()
        time.sleep(random.uniform(CALM_S, CALM_S + args.spread))
        at = inject(job, args.fault)
        found = job.wait(args.patience, job.next_step, at)
        if found is None:
            hangs += 1
            print(f"round {number}: no step within {args.patience} s", file=sys.stderr)
            for member in job.members:
                print("  ", member.lives(), member.lines[-2:], file=sys.stderr)
            continue
        pauses.append(found[0] - at)
        print(
            f"round {number}: {pauses[-1]:.3f} s, epoch {found[1]} of {found[2]}", file=sys.stderr
        )
    return pauses, hangs


def trained(job, every):
    """Trains to the last step, with a kill and a replacement every so many seconds; the report."""
    job.fill()
    due = time.time() + (every or float("inf"))
    kills = 0
    while any(member.lives() for member in job.members):
        time.sleep(0.05)
        if time.time() > due:
            due += every
            kills += 1
            victim = random.choice([member for member in job.members if member.lives()])
            victim.kill()
            job.members.remove(victim)
            job.gone.append(victim)
            job.start()
    for member in job.members + job.gone:
        member.popen.wait()
    reports = [report for member in job.members if (report := member.report())]
    if len(reports) != 1:
        raise SystemExit(f"{len(reports)} reports, expected one: {job.lines()[-5:]}")
    return reports[0], kills


def seconds(text):
    """Seconds of a duration as the trainer prints it: "362 ms"."""
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "min": 60}[unit]


def useful(job, step_s):
    """The part of all rank-seconds that went into steps that count."""
    lost = 0.0
    for _, line in job.lines():
        if match := STEP.search(line):
            pause_s = seconds(match["after"] or match["until"])
            lost += max(0.0, pause_s - step_s) * int(match["ranks"])
    everyone = job.members + job.gone
    begun = min(member.begun for member in everyone)
    joined = sorted(at for at, line in job.lines() if "of them new" in line)
    starts = sorted(member.begun for member in everyone if member.begun > begun + 5)
    for start in starts:
        lost += next((at for at in joined if at > start), start) - start
    alive = sum((member.ended or time.time()) - member.begun for member in everyone)
    return 1 - lost / alive


def churn(args):
    """A training with a kill every so often beside a calm one of as many steps."""
    losses = {}
    for every in (0, args.every):
        with running(args) as job:
            report, kills = trained(job, every)
            run = report["runs"][0] if "runs" in report else report
            losses[every] = run["validation"][-1]["value"]
            if every == 0:
                step_s = run["time"]["step_s"]
                calm_s = run["validation"][-1]["at_s"]
            else:
                part = useful(job, step_s)
    ratio = losses[args.every] / losses[0]
    figures = {"kills": kills, "calm_s": calm_s, "step_s": step_s, "useful": part, "losses": ratio}
    print(json.dumps({"fault": "churn", **figures}))


def thread_s(process, name):
    """Processor time of a process's threads of that name, in seconds; 0 once it has ended."""
    total = 0
    for task in pathlib.Path(f"/proc/{process.popen.pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == name[:15]:
                total += int((task / "schedstat").read_text().split()[0])
    return total * 1e-9


def watched(job, name, share):
    """Appends to `share` the part of the time in which threads of that name computed."""
    while any(member.lives() for member in job.members):
        member = job.members[0]
        spent = thread_s(member, name)
        if spent:
            share.append(spent / (time.time() - member.begun))
        time.sleep(0.5)


def finished(job):
    """The last validation loss, and how often each sample was trained on if ranks record that."""
    report, _ = trained(job, 0)
    run = report["runs"][0] if "runs" in report else report
    record = pathlib.Path(job.folder, "record")
    return run["validation"][-1]["value"], samples.passes(record) if record.exists() else None


def cost(args):
    """Step times of elastic and of fixed jobs without any fault, in turns.

    Beside it the processor time of the thread that talks with the coordinator, as a share of the time: all
    that a step of an elastic job does besides is to store its number and to look for an announcement.
    """
    fixed, elastic, share = [], [], []
    for _ in range(args.rounds):
        command = [*training(args, str(args.world)), "--checkpoint-dir", "none"]
        process = Process(command + args.flags, {})
        fixed.append(process.report()["time"]["step_s"])
        with running(args) as job:
            job.fill()
            threading.Thread(target=watched, args=(job, "thinwire member", share)).start()
            report, _ = trained(job, 0)
        elastic.append(report["time"]["step_s"])
        print(
            f"fixed {fixed[-1] * 1e3:.2f} ms, elastic {elastic[-1] * 1e3:.2f} ms", file=sys.stderr
        )
    ratios = [b / a for a, b in zip(fixed, elastic, strict=True)]
    medians = [statistics.median(times) for times in (fixed, elastic)]
    figures = {"fixed_s": medians[0], "elastic_s": medians[1], "ratio": statistics.median(ratios)}
    figures["thread"] = statistics.median(share)
    print(json.dumps({"fault": "none", **figures}))


@contextlib.contextmanager
def running(args):
    """A job with a folder of its own, of which no process is left at the end."""
    with tempfile.TemporaryDirectory() as folder:
        job = (LaunchedJob if args.fault == "etcd" else Job)(args, folder)
        try:
            yield job
        finally:
            for process in [*job.members, job.coordinator]:
                if process.lives():
                    process.popen.send_signal(signal.SIGCONT)
                    process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thinwire", required=True)
    parser.add_argument("--fault", default="kill")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--patience", type=float, default=30)
    parser.add_argument("--every", type=float, default=30, help="seconds between kills of churn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--namespaces", help="prefix of a network namespace per host, for cuts")
    parser.add_argument("--finish", action="store_true", help="train on to the last step")
    parser.add_argument("--own", action="store_true", help="a command instead of flags after --")
    parser.add_argument("flags", nargs="*", help="flags of thinwire train, after --")
    args = parser.parse_args()
    random.seed(args.seed)
    if args.fault == "churn":
        return churn(args)
    if args.fault == "none":
        return cost(args)
    with running(args) as job:
        pauses, hangs = rounds(job, args)
        ended = finished(job) if args.finish else None
    figures = {
        "fault": args.fault,
        "rounds": args.rounds,
        "hangs": hangs,
        "median_s": statistics.median(pauses) if pauses else None,
        "worst_s": max(pauses, default=None),
    }
    if ended:
        with running(args) as job:
            calm = finished(job)
        figures |= {"losses": ended[0] / calm[0], "passes": ended[1]}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
