//! Views on the coordinator's port: handles requests for them, and sends them.
//!
//! Law: no state of a view service, and no decision based on one, is sent before that state is saved.

use thinwire_link::endpoint::{ClientId, Outbox};
use thinwire_member::Id;

use super::{CoordinatorService, NO_SERVERS};
use crate::elastic::envelope::Reply;

impl CoordinatorService {
    /// Answers a request about views. No request is passed on until the last state is saved.
    pub(super) fn answer_views(
        &mut self,
        client: ClientId,
        from: Id,
        request: &[u8],
        out: &mut Outbox,
    ) {
        let refuse = |reason: String, out: &mut Outbox| {
            out.send(client, &Reply::ViewsRefused(reason).to_bytes());
        };
        let is_saved = self.are_views_saved();
        let Some(views) = self.roles.views() else { return refuse(NO_SERVERS.to_owned(), out) };
        views.subscribe(client);
        let answer = match request.is_empty() {
            true => Ok(()),
            // It comes back, perhaps to another coordinator.
            false if !is_saved => return out.close(client),
            false if self.end.is_some() => Err("the job is over".to_owned()),
            false => views.request(from, request),
        };
        match answer {
            Ok(()) => self.publish(Some(client), out),
            Err(reason) => refuse(reason, out),
        }
    }

    /// Sends changed views to all subscribers, and the present views to `asker`, once they are saved.
    pub(super) fn publish(&mut self, asker: Option<ClientId>, out: &mut Outbox) {
        if self.are_views_saved() {
            self.roles.views().into_iter().for_each(|views| views.publish(asker, out));
        }
    }

    /// Saves the views if they have changed. Returns whether they are saved and this coordinator still leads.
    fn are_views_saved(&mut self) -> bool {
        let Some(views) = self.roles.views() else { return true };
        let is_due = views.is_due();
        // The state of a job that is over is that it is over.
        let may_save = self.end.is_none();
        !self.persistence.is_superseded() && (!is_due || (may_save && self.save()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use thinwire_link::endpoint::{Action, Node};
    use thinwire_member::{CoordinatorMode, Member, MemberAction, MemberEvent, Options, Roster};

    use super::*;
    use crate::elastic::envelope::{End, Request};
    use crate::elastic::job_spec::JobSpec;
    use crate::elastic::persistence::{Parts, Persistence, Registry, Unsaved};
    use crate::elastic::role::Role;
    use crate::elastic::roles::RoleRegistry;
    use crate::elastic::views::{Job, Servers, ViewService};
    use crate::error::Error;

    /// View service that counts its requests, and refuses `no`.
    #[derive(Default)]
    struct Count(u8);

    impl ViewService for Count {
        fn started(&mut self, _role: Role, _epoch: u32, _members: &[Id]) {
            self.0 += 1;
        }
        fn request(&mut self, _from: Id, request: &[u8]) -> Result<(), String> {
            match request {
                b"no" => Err("it is refused".to_owned()),
                b"same" => Ok(()),
                _ => {
                    self.0 += 1;
                    Ok(())
                }
            }
        }
        fn version(&self) -> u64 {
            self.0.into()
        }
        fn state(&self) -> Vec<u8> {
            vec![self.0]
        }
        fn restore(&mut self, state: &[u8]) -> Result<(), String> {
            self.0 = *state.first().ok_or("no bytes, expected one")?;
            Ok(())
        }
    }

    /// Registry that keeps the last state in memory, unless it is set to fail.
    #[derive(Clone, Default)]
    struct Memory {
        state: Arc<Mutex<Option<Vec<u8>>>>,
        is_broken: Arc<AtomicBool>,
    }

    impl Registry for Memory {
        fn place(&self) -> String {
            "memory".to_owned()
        }
        fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
            Ok(self.state.lock().unwrap().clone())
        }
        fn save(&mut self, bytes: &[u8]) -> Result<(), Unsaved> {
            if self.is_broken.load(Ordering::Relaxed) {
                return Err(Unsaved::Cannot("it is broken".to_owned()));
            }
            // The views that are saved with epochs know of all of them.
            let parts = Parts::parse(bytes).unwrap();
            let is_started = |saved: &[u8]| {
                let (options, zero) = (job().workers, Duration::ZERO);
                Roster::restore(saved, options, zero, zero, zero).unwrap().epoch().is_some()
            };
            let epochs =
                [&parts.workers, &parts.servers].iter().filter(|it| is_started(it)).count();
            assert!(usize::from(parts.views[0]) >= epochs, "{parts:?}");
            *self.state.lock().unwrap() = Some(bytes.to_vec());
            Ok(())
        }
    }

    fn job() -> Job {
        let options = Options::new(CoordinatorMode::Saved, 1, 1);
        Job { workers: options, servers: Some(Servers::new(options, Count::default)) }
    }

    /// A coordinator whose state is in memory.
    struct Coordinator {
        service: CoordinatorService,
        base: Instant,
    }

    impl Coordinator {
        fn new(memory: &Memory) -> Coordinator {
            let mut persistence = Persistence::to(memory.clone());
            let roles = RoleRegistry::begin(&mut persistence, &mut job()).unwrap();
            let (base, target) = (Instant::now(), Arc::new(AtomicU32::new(0)));
            let service =
                CoordinatorService::new(roles, persistence, target, Box::new(|_| {}), base);
            Coordinator { service, base }
        }

        /// Passes a request to the coordinator; returns the messages that it sends.
        fn hear(&mut self, client: u64, request: &Request) -> Vec<(u64, Reply)> {
            let mut out = Outbox::new();
            let client = ClientId(client);
            self.service.received(client, &request.to_bytes(), self.base, &mut out).unwrap();
            left(out)
        }

        fn ask(&mut self, client: u64, request: &[u8]) -> Vec<(u64, Reply)> {
            self.hear(client, &Request::Views { from: Id(0), request: request.to_vec() })
        }

        /// Lets a process join and ask to be in the next epoch; returns the messages that are sent then.
        fn join(&mut self, client: u64, id: Id) -> Vec<(u64, Reply)> {
            let spec = JobSpec::default();
            let (fingerprint, options) = (spec.fingerprint(), job().workers);
            let mut member = Member::new(id, options, fingerprint);
            let welcome = self.hear(client, &Request::Join { id, spec });
            let [(_, Reply::Welcome { coordinator, .. })] = &welcome[..] else {
                panic!("{welcome:?}")
            };
            member.on(MemberEvent::Coordinator(*coordinator), Duration::ZERO);
            let mut events = vec![MemberEvent::Tick];
            let mut told = Vec::new();
            while let Some(event) = events.pop() {
                for action in member.on(event, Duration::ZERO) {
                    let MemberAction::Send { message, .. } = action else {
                        continue;
                    };
                    for (to, reply) in self.hear(client, &Request::Member(message)) {
                        match reply {
                            Reply::Member(message) if to == client => {
                                events.push(MemberEvent::Message { from: *coordinator, message })
                            }
                            reply => told.push((to, reply)),
                        }
                    }
                }
            }
            told
        }
    }

    fn left(mut out: Outbox) -> Vec<(u64, Reply)> {
        let sent = out.take().into_iter().filter_map(|action| match action {
            Action::Send { to, message } => Some((to.0, Reply::parse(&message).unwrap())),
            _ => None,
        });
        sent.collect()
    }

    fn views(state: u8) -> Reply {
        Reply::Views(vec![state])
    }

    #[test]
    fn subscribers_get_what_changes_and_askers_an_answer_in_any_case() {
        let mut coordinator = Coordinator::new(&Memory::default());
        assert_eq!(coordinator.ask(1, b""), [(1, views(0))]);
        assert_eq!(coordinator.ask(2, b"more"), [(1, views(1)), (2, views(1))]);
        assert_eq!(coordinator.ask(1, b"same"), [(1, views(1))]);
        let refused = Reply::ViewsRefused("it is refused".to_owned());
        assert_eq!(coordinator.ask(3, b"no"), [(3, refused)]);
        // Whoever was refused has subscribed too.
        let all = [1, 2, 3].map(|client| (client, views(2)));
        assert_eq!(coordinator.ask(1, b"more"), all);
        let mut out = Outbox::new();
        coordinator.service.closed(ClientId(2), coordinator.base, &mut out);
        assert_eq!(coordinator.ask(1, b"more").len(), 2);
    }

    #[test]
    fn no_views_leave_before_they_are_saved() {
        let memory = Memory::default();
        let mut coordinator = Coordinator::new(&memory);
        coordinator.ask(1, b"");
        memory.is_broken.store(true, Ordering::Relaxed);
        assert_eq!(coordinator.ask(2, b"more"), []);
        // Nothing is decided on top of it: who asks is sent away.
        assert_eq!(coordinator.ask(3, b"no"), []);
        assert_eq!(coordinator.ask(4, b""), []);
        memory.is_broken.store(false, Ordering::Relaxed);
        let all = [1, 2, 3, 4].map(|client| (client, views(1)));
        assert_eq!(coordinator.ask(4, b""), all);
    }

    #[test]
    fn an_epoch_and_the_views_of_it_are_saved_together() {
        let memory = Memory::default();
        let mut coordinator = Coordinator::new(&memory);
        coordinator.ask(9, b"");
        let server = Role::Server.id(5);
        assert_eq!(coordinator.join(1, server), [(9, views(1))]);
        assert_eq!(coordinator.join(2, Id(5)), [(9, views(2))]);
        // The service knows both epochs, and is told of them again.
        let mut restarted = Coordinator::new(&memory);
        assert_eq!(restarted.ask(9, b""), [(9, views(4))]);
        let epochs: Vec<_> = restarted
            .service
            .roles
            .epochs()
            .map(|(role, epoch)| (role, epoch.members.clone()))
            .collect();
        assert_eq!(epochs, [(Role::Worker, vec![Id(5)]), (Role::Server, vec![server])]);
    }

    #[test]
    fn a_job_that_is_over_is_asked_in_vain() {
        let mut coordinator = Coordinator::new(&Memory::default());
        coordinator.service.finish(End::Stop, &mut Outbox::new());
        assert_eq!(coordinator.ask(1, b""), [(1, views(0))]);
        let refused = Reply::ViewsRefused("the job is over".to_owned());
        assert_eq!(coordinator.ask(1, b"more"), [(1, refused)]);
    }

    #[test]
    fn the_state_of_a_job_with_servers_is_none_of_one_without() {
        let memory = Memory::default();
        Coordinator::new(&memory).ask(1, b"more");
        let mut plain = Job::from(job().workers);
        let mut persistence = Persistence::to(memory.clone());
        let error = RoleRegistry::begin(&mut persistence, &mut plain).map(drop).unwrap_err();
        let said = "reading memory: it is the state of a job with servers, expected one without";
        assert_eq!(error.to_string(), said);
        // The other way round, servers are new to the job.
        *memory.state.lock().unwrap() = Some(
            RoleRegistry::begin(&mut Persistence::default(), &mut plain).unwrap().save().unwrap(),
        );
        assert_eq!(Coordinator::new(&memory).ask(1, b""), [(1, views(0))]);
    }
}
