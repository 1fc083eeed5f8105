//! Law of the coordinator of elastic jobs, without sockets.

use std::time::{Duration, Instant};

use thinwire_job::elastic::{CoordinatorMode, Options};
use thinwire_job::fuzzing::{check_reply, coordinator as service};
use thinwire_link::endpoint::{Action, ClientId, Node, Outbox};

use crate::draw::Draw;

/// Number of connections at a time.
const CLIENTS: usize = 3;

/// Checks, for any messages of clients that have the token, in any order, that the coordinator answers
/// or refuses them, prints one line per event, and sends messages that are read back unchanged.
pub fn coordinator(bytes: &[u8]) {
    let (mut draw, base) = (Draw::new(bytes), Instant::now());
    let mut service = service(Options::new(CoordinatorMode::Saved, 1, 3), base);
    let (mut now, mut out) = (base, Outbox::new());
    let mut clients: Vec<ClientId> = (0..CLIENTS as u64).map(ClientId).collect();
    let mut next = CLIENTS as u64;
    clients.iter().for_each(|client| service.opened(*client, now, &mut out));
    while !draw.is_over() {
        let (what, who) = (draw.u8(), usize::from(draw.u8()) % CLIENTS);
        let length = usize::from(draw.u16());
        let message = draw.slice(length % (1 + service.message_bytes_max()));
        now += Duration::from_millis(u64::from(what) * 4);
        if service.deadline().is_some_and(|deadline| now >= deadline) {
            service.tick(now, &mut out);
            // Ticks answer requests to the store, too, which have a law of their own.
            out.take();
        }
        let is_refused =
            !message.is_empty() && service.received(clients[who], message, now, &mut out).is_err();
        for action in out.take() {
            if let Action::Send { message: reply, .. } = &action {
                check_reply(message, reply);
            }
        }
        if is_refused || what == 0xff {
            service.closed(clients[who], now, &mut out);
            clients[who] = ClientId(next);
            next += 1;
            service.opened(clients[who], now, &mut out);
            out.take();
        }
    }
}
