//! Making the mesh: every rank connects to all lower ones, and accepts connections of all higher ones.
//!
//! One non-blocking loop makes all connections. Unauthenticated peers have a short deadline and a bounded number of
//! places ([`Places`]); their errors are kept, since one of them may explain why a rank is missing.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use thinwire_wire::{Rank, World};

use crate::duplex::timespec;
use crate::shared_port::Listener;
use crate::shared_port::address::Address;
use crate::tcp::agreement::mismatch;
use crate::tcp::connection::{Connection, Parts};
use crate::tcp::options::{Connections, Options};
use crate::tcp::peer::Peer;
use crate::tcp::pending::{CONTROL, Hello, Pending};
use crate::tcp::reader::Traffic;
use crate::unauthenticated_peers::{
    ACCEPTS_MAX, Places, REFUSED_PAUSE, Refusals, UnauthenticatedPeer,
};
use crate::warning::warn;
use crate::{Error, Kind};

/// The largest number of connections that have not identified themselves, in addition to those that are
/// expected.
const UNAUTHENTICATED_PEERS: Places = Places { total: 64, per_address: 16 };
/// Pause before a failed connection is tried again: the peer may not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// A rank's entry in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address on which the rank listens.
    pub address: Address,
    /// The rank's heartbeat timeout.
    pub heartbeat_timeout: Option<Duration>,
    /// The most data connections that the rank has descriptors for.
    pub connections_max: u16,
}

/// The mesh in the making.
pub struct Mesh<'a> {
    world: World,
    options: &'a Options,
    listener: &'a Listener,
    addresses: Vec<Address>,
    /// Heartbeat timeouts, by rank.
    heartbeat_timeouts: Vec<Option<Duration>>,
    /// The most data connections to each rank.
    connections_max: Vec<u16>,
    deadline: Instant,
    pending: Vec<Pending>,
    retries: Vec<(Instant, Rank, u16)>,
    /// By rank and channel.
    made: Vec<Vec<Option<Parts>>>,
    /// Last failure by rank.
    failures: Vec<Option<Error>>,
    refusals: Refusals,
    /// The time from which to accept again.
    resume: Instant,
}

impl<'a> Mesh<'a> {
    /// Returns the mesh of ranks that listen at these addresses.
    pub fn new(
        world: World,
        options: &'a Options,
        listener: &'a Listener,
        entries: Vec<Entry>,
        deadline: Instant,
    ) -> Mesh<'a> {
        let now = Instant::now();
        let mine = entries[world.rank().index()].connections_max;
        let connections_max: Vec<u16> =
            entries.iter().map(|entry| entry.connections_max.min(mine)).collect();
        let lower = world.ranks().filter(|rank| *rank < world.rank());
        // Without an exact number the control connection comes first, since its round trip decides how many follow.
        let channels = |rank: Rank| match options.connections {
            Connections::Exactly(connections) => {
                CONTROL..=connections.min(connections_max[rank.index()])
            }
            Connections::AtLeast(_) => CONTROL..=CONTROL,
        };
        let retries =
            lower.flat_map(|rank| channels(rank).map(move |channel| (now, rank, channel)));
        Mesh {
            retries: retries.collect(),
            connections_max,
            world,
            options,
            listener,
            addresses: entries.iter().map(|entry| entry.address).collect(),
            heartbeat_timeouts: entries.iter().map(|entry| entry.heartbeat_timeout).collect(),
            deadline,
            pending: Vec::new(),
            made: world.ranks().map(|_| Vec::new()).collect(),
            failures: world.ranks().map(|_| None).collect(),
            refusals: Refusals::default(),
            resume: now,
        }
    }

    /// Connects all ranks.
    ///
    /// # Errors
    /// If a rank cannot be connected to in time or is of another job, or the options' handle cancels it.
    pub fn make(mut self) -> Result<Vec<Option<Peer>>, Error> {
        self.warn_of_fewer_connections();
        loop {
            let now = Instant::now();
            self.retry(now);
            self.advance(now)?;
            let missing: Vec<Rank> =
                self.world.peers().filter(|peer| !self.is_complete(*peer)).collect();
            if missing.is_empty() {
                return self.into_peers();
            }
            if now >= self.deadline {
                return Err(self.explain(&missing));
            }
            let size = self.world.size();
            let doing = || format!("connecting to {} of {size}", name(&missing));
            self.options.check_awaited(&missing, doing)?;
            self.poll()?;
            self.accept();
        }
    }

    /// Warns if this rank would make more connections than its descriptors allow.
    fn warn_of_fewer_connections(&self) {
        let Connections::Exactly(asked) = self.options.connections else { return };
        let mine = self.world.rank();
        let lower = self.connections_max.iter().zip(self.world.ranks()).take(mine.index());
        if let Some((most, rank)) = lower.min().filter(|(most, _)| **most < asked) {
            warn(&format_args!(
                "{mine} and {rank} can open only {most} connections, not {asked}: one of the two \
                 has too few file descriptors (hint: raise ulimit -n)"
            ));
        }
    }

    fn is_complete(&self, peer: Rank) -> bool {
        let made = &self.made[peer.index()];
        !made.is_empty() && made.iter().all(Option::is_some)
    }

    /// Begins the connections whose time has come.
    fn retry(&mut self, now: Instant) {
        let due = self.retries.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, rank, channel) in due {
            let (made, most) = (self.made[rank.index()].len(), self.connections_max[rank.index()]);
            let connections = match self.options.connections {
                // The hello of the control connection has fixed the number.
                Connections::AtLeast(_) if channel != CONTROL => made as u16 - 1,
                connections => connections.least().min(most),
            };
            let hello = Hello {
                rank: self.world.rank(),
                size: self.world.size() as u32,
                epoch: self.options.epoch,
                channel,
                connections,
                // Known once both have said whether they encrypt.
                shares_memory: false,
            };
            let address = self.addresses[rank.index()];
            match Pending::connect(address, hello, self.options, self.deadline) {
                Ok(pending) => self.pending.push(pending.with_at_most(most)),
                Err(error) => self.again(rank, channel, error),
            }
        }
    }

    fn again(&mut self, rank: Rank, channel: u16, error: Error) {
        let (now, failure) = (Instant::now(), &mut self.failures[rank.index()]);
        // An attempt that only the end of all attempts has cut short says less than the one before it.
        if failure.is_none() || now < self.deadline {
            *failure = Some(error);
        }
        self.retries.push((now + RETRY, rank, channel));
    }

    /// Returns the places. Expected connections also count for a single address, since all ranks may be
    /// on one host.
    fn places(&self) -> Places {
        let expected = self.made.len() * (1 + usize::from(self.options.connections.most()));
        let Places { total, per_address } = UNAUTHENTICATED_PEERS;
        Places { total: total + expected, per_address: per_address + expected }
    }

    /// Returns the unauthenticated peers and their places among all pending connections.
    fn unauthenticated_peers(&self) -> impl Iterator<Item = (usize, UnauthenticatedPeer)> {
        let pending = self.pending.iter().enumerate();
        pending.filter_map(|(place, pending)| Some((place, pending.unauthenticated_peer()?)))
    }

    fn has_room(&self) -> bool {
        self.unauthenticated_peers().count() < self.places().total
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            if !self.has_room() || Instant::now() < self.resume {
                return;
            }
            match self.listener.accept() {
                Ok((stream, address)) => self.greet(stream, address),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The unauthenticated peer hung up before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.resume = Instant::now() + REFUSED_PAUSE;
                    let refused = Error::io("this rank could not accept a connection", error);
                    self.refusals.keep(refused.of(Kind::Timeout));
                }
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, address: SocketAddr) {
        if let Some(place) = self.places().evicted(self.unauthenticated_peers(), address.ip()) {
            let evicted = self.pending.swap_remove(place);
            self.refusals.count(evicted.address.socket.ip());
        }
        let pending = Pending::accept(stream, address, self.options, self.deadline);
        self.pending.extend(pending);
    }

    fn advance(&mut self, now: Instant) -> Result<(), Error> {
        let handshake_timeout =
            self.places().handshake_timeout(self.unauthenticated_peers().count());
        // From the last to the first, so that the place of one that leaves is taken by one that has had its turn.
        for place in (0..self.pending.len()).rev() {
            let mut pending = self.pending.swap_remove(place);
            // The fuller the places, the less time unauthenticated peers have.
            if let Some(unauthenticated_peer) = pending.unauthenticated_peer() {
                pending.deadline =
                    (unauthenticated_peer.since + handshake_timeout).min(self.deadline);
            }
            match pending.advance(now, |hello| self.admit(hello)) {
                Ok(false) => self.pending.push(pending),
                Ok(true) => self.finish(pending),
                Err(error) => self.fail(&pending, error)?,
            }
        }
        Ok(())
    }

    /// Checks whether a rank that has proven the token may have the channel that it asks for.
    fn admit(&self, hello: &Hello) -> Result<(), Error> {
        let (me, size) = (self.world.rank(), self.world.size());
        if hello.size as usize != size {
            return Err(mismatch(self.world, hello.rank, hello.size as usize));
        }
        if hello.epoch != self.options.epoch {
            return Err(Error::new(
                Kind::Invalid,
                format!(
                    "{me} is in epoch {}, but {} is in epoch {}",
                    self.options.epoch, hello.rank, hello.epoch
                ),
            ));
        }
        // Each pair has one connecting side, the higher rank, or both would make connections.
        if hello.rank <= me {
            return Err(Error::new(
                Kind::Invalid,
                format!("{me} connects to {}, not the other way", hello.rank),
            ));
        }
        let made = &self.made[hello.rank.index()];
        // The first hello fixes the number of connections; each channel is taken once.
        let free = made.is_empty()
            || made.len() == usize::from(hello.connections) + 1
                && made[usize::from(hello.channel)].is_none();
        // Connections that still agree on memory have been admitted, and are not in `made` yet.
        let mut admitted = self.pending.iter().filter(|pending| pending.is_accepted());
        let free = free
            && !admitted.any(|pending| {
                pending.hello.is_some_and(|other| {
                    other.rank == hello.rank
                        && (other.channel == hello.channel
                            || other.connections != hello.connections)
                })
            });
        if !free {
            return Err(Error::new(
                Kind::RankTaken,
                format!("{me} is connected to another process that is {}", hello.rank),
            ));
        }
        Ok(())
    }

    fn finish(&mut self, pending: Pending) {
        let hello = pending.hello.expect("both sides know each other");
        let rank = match pending.is_accepted() {
            true => hello.rank,
            false => self.rank_at(&pending),
        };
        // The round trip of the control connection is known now, and so is the number of data connections.
        if !pending.is_accepted()
            && hello.channel == CONTROL
            && let Connections::AtLeast(_) = self.options.connections
        {
            let now = Instant::now();
            let data = CONTROL + 1..=hello.connections;
            self.retries.extend(data.map(|channel| (now, rank, channel)));
        }
        let made = &mut self.made[rank.index()];
        made.resize_with(usize::from(hello.connections) + 1, || None);
        made[usize::from(hello.channel)] = Some(pending.into_parts());
    }

    fn rank_at(&self, pending: &Pending) -> Rank {
        let index = self.addresses.iter().position(|address| *address == pending.address);
        Rank(index.expect("an address that was connected to") as u32)
    }

    /// Handles a failed connection: ends with an error, schedules another attempt, or forgets an
    /// unauthenticated peer.
    fn fail(&mut self, pending: &Pending, error: Error) -> Result<(), Error> {
        if pending.is_accepted() {
            let error = error.by(pending.address.socket);
            match error.kind {
                // Both know the token, so the job itself is wrong, and waiting would not help.
                Kind::WorldMismatch => return Err(error),
                // Another job's process, or the missing rank with a wrong setting: kept as a reason.
                Kind::TokenMismatch | Kind::VersionMismatch => self.refusals.keep(error),
                _ if pending.hello.is_none() => self.refusals.count(pending.address.socket.ip()),
                // A rank, which connects again.
                _ => {}
            }
            return Ok(());
        }
        let rank = self.rank_at(pending);
        match error.kind {
            // Not listening yet, or overloaded.
            Kind::Io | Kind::Timeout => {
                let channel = pending.hello.map_or(CONTROL, |hello| hello.channel);
                self.again(rank, channel, error);
                Ok(())
            }
            Kind::WorldMismatch | Kind::RankTaken => Err(error.with_rank(rank)),
            _ => {
                Err(error.by(format_args!("{rank} at {}", pending.address.socket)).with_rank(rank))
            }
        }
    }

    fn poll(&self) -> Result<(), Error> {
        let now = Instant::now();
        let open = self.has_room() && now >= self.resume;
        let accept = if open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(self.listener, accept)];
        fds.extend(self.pending.iter().map(Pending::poll_fd));
        let retries = self.retries.iter().map(|(at, ..)| *at);
        let resume = (self.resume > now).then_some(self.resume);
        let deadlines = self.pending.iter().map(|pending| pending.deadline);
        let deadlines = deadlines.chain(retries).chain(resume);
        let until = deadlines.fold(self.deadline, Instant::min);
        let timeout = until.saturating_duration_since(now).min(self.options.wait_max());
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("cannot poll", error.into())),
        }
    }

    fn explain(&self, missing: &[Rank]) -> Error {
        self.options.tell_unreachable(missing);
        let ranks = name(missing);
        let size = self.world.size();
        let mut context = format!(
            "could not connect to {ranks} of {size} within {:.0} s",
            self.options.timeout.as_secs_f64().ceil()
        );
        let failures = missing.iter().filter_map(|rank| {
            let error = self.failures[rank.index()].as_ref()?;
            Some(format!("; {rank} at {}: {}", self.addresses[rank.index()].socket, error.context))
        });
        context.extend(failures);
        self.refusals.explain(Error::new(Kind::Timeout, context).with_rank(missing[0]))
    }

    fn into_peers(self) -> Result<Vec<Option<Peer>>, Error> {
        let (epoch, mine) = (self.options.epoch, self.options.heartbeat_timeout);
        let silence = mine.unwrap_or(Duration::from_secs(60));
        let mut peers: Vec<Option<Peer>> = self.world.ranks().map(|_| None).collect();
        for (rank, made) in self.world.ranks().zip(self.made) {
            let mut made = made.into_iter().flatten().enumerate().map(|(channel, parts)| {
                let traffic = match channel == usize::from(CONTROL) {
                    true => Traffic::Control,
                    false => Traffic::Data,
                };
                let connection = Connection::new(rank, epoch, traffic, parts);
                connection.watch(silence, traffic).map(|()| connection)
            });
            if let Some(control) = made.next() {
                let data = made.collect::<Result<Vec<_>, _>>()?;
                let peer = Peer::new(rank, epoch, control?, data);
                let theirs = self.heartbeat_timeouts[rank.index()];
                peers[rank.index()] = Some(peer.with_heartbeat(mine, theirs));
            }
        }
        Ok(peers)
    }
}

/// Returns "rank 1" or "ranks 1, 2, 3".
pub fn name(ranks: &[Rank]) -> String {
    let numbers: Vec<_> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
