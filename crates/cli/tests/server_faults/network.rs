//! Places of a job's processes: loopback, or two network namespaces joined by a link.

use std::process::Command;

/// Network of a job.
#[derive(Debug)]
pub enum Network {
    /// All processes are on the loopback of this machine.
    Loopback,
    /// Two namespaces, the near and the far one, which are removed when this is dropped.
    Hosts([String; 2]),
}

/// Place of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// With the coordinator and the workers.
    Near,
    /// At the other end of the link, if there is one.
    Far,
}

/// Addresses of the namespaces.
const ADDRESSES: [&str; 2] = ["10.77.3.1", "10.77.3.2"];

impl Network {
    /// Creates two namespaces. Without permission to do so, prints a note and returns `None`.
    pub fn of_two_hosts() -> Option<Network> {
        let names = ["near", "far"].map(|name| format!("tw{}-{name}", std::process::id()));
        let [near, far] = &names;
        if !is_done(&["netns", "add", near]) {
            eprintln!("skipped: this process may not make network namespaces (root and iproute2)");
            return None;
        }
        let network = Network::Hosts(names.clone());
        let made = is_done(&["netns", "add", far])
            && is_done(&[
                "-n", near, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", far,
            ]);
        assert!(made, "making a link between namespaces");
        for (name, address) in names.iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            assert!(is_done(&["-n", name, "address", "add", &address, "dev", "eth0"]));
            ["lo", "eth0"].iter().for_each(|link| assert!(set(name, link, "up")));
        }
        Some(network)
    }

    /// Returns the address of a place's processes.
    pub fn address(&self, place: Place) -> &'static str {
        match (self, place) {
            (Network::Loopback, _) => "127.0.0.1",
            (Network::Hosts(_), Place::Near) => ADDRESSES[0],
            (Network::Hosts(_), Place::Far) => ADDRESSES[1],
        }
    }

    /// Returns the command of a program in a place.
    pub fn command(&self, place: Place) -> Command {
        // The process is killed when the thread that started it ends, so a failed test leaves nothing
        // running.
        let guard = ["--pdeathsig", "KILL"];
        let Network::Hosts([near, far]) = self else {
            let mut command = Command::new("setpriv");
            command.args(guard);
            return command;
        };
        let namespace = if place == Place::Near { near } else { far };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "setpriv"]).args(guard);
        command
    }

    /// Takes the link between the namespaces down.
    pub fn cut(&self) {
        self.set_link("down");
    }

    /// Brings the link up again.
    pub fn mend(&self) {
        self.set_link("up");
    }

    fn set_link(&self, state: &str) {
        let Network::Hosts([near, _]) = self else { panic!("loopback is not cut") };
        assert!(set(near, "eth0", state));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Network::Hosts(names) = self {
            for name in names {
                let _ = is_done(&["netns", "delete", name]);
            }
        }
    }
}

fn set(namespace: &str, link: &str, state: &str) -> bool {
    is_done(&["-n", namespace, "link", "set", link, state])
}

fn is_done(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
