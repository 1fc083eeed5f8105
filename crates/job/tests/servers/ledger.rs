//! A view service that writes down what it is told.

use thinwire_job::elastic::{Id, Role, ViewService};

/// Lines, one for each change: `worker 1 ID ID`, `server 2 ID`, or `ID: request`.
#[derive(Debug, Default)]
pub struct Ledger {
    lines: Vec<String>,
}

impl ViewService for Ledger {
    fn started(&mut self, role: Role, epoch: u32, members: &[Id]) {
        let role = if role == Role::Worker { "worker" } else { "server" };
        let members: String = members.iter().map(|id| format!(" {id}")).collect();
        let line = format!("{role} {epoch}{members}");
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    fn request(&mut self, from: Id, request: &[u8]) -> Result<(), String> {
        let request = std::str::from_utf8(request).map_err(|error| error.to_string())?;
        if request.starts_with("no") {
            return Err(format!("{request}: it is refused"));
        }
        self.lines.push(format!("{from}: {request}"));
        Ok(())
    }

    fn version(&self) -> u64 {
        self.lines.len() as u64
    }

    fn state(&self) -> Vec<u8> {
        self.lines.join("\n").into_bytes()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(state).map_err(|error| error.to_string())?;
        self.lines = text.lines().map(str::to_owned).collect();
        Ok(())
    }
}
