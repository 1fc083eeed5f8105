//! The job address of a process in an elastic job: its id, the coordinator's address, and the token.

use thinwire_link::Token;
use thinwire_member::Id;

use super::role::Role;
use super::store::Store;
use crate::address;
use crate::environment::Variables;
use crate::error::Error;
use crate::overrides::Overrides;
use crate::rendezvous;

/// The environment variable with the id of a member: sixteen hexadecimal digits, or `new` for a new worker.
pub const VARIABLE: &str = "THINWIRE_MEMBER";

/// A process of an elastic job before it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAddress {
    /// Address of the coordinator as host:port, or of the store that has it: `etcd://host:port/JOB`.
    pub coordinator: String,
    /// The job's secret.
    pub token: String,
    /// Id of the process, which no other process ever has.
    pub id: Id,
}

impl JobAddress {
    /// Returns the job address of a worker, with a random id.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(
        coordinator: impl Into<String>,
        token: impl Into<String>,
    ) -> Result<JobAddress, Error> {
        let id = fresh_id(Role::Worker)?;
        Ok(JobAddress { coordinator: coordinator.into(), token: token.into(), id })
    }

    /// Returns the job address of a server, with a random id.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn server(
        coordinator: impl Into<String>,
        token: impl Into<String>,
    ) -> Result<JobAddress, Error> {
        let id = fresh_id(Role::Server)?;
        Ok(JobAddress { coordinator: coordinator.into(), token: token.into(), id })
    }

    /// Returns the environment variables in which a launcher gives this job address to a process.
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [
            (VARIABLE, self.id.to_string()),
            ("THINWIRE_COORDINATOR", self.coordinator.clone()),
            ("THINWIRE_TOKEN", self.token.clone()),
        ]
    }

    /// Returns the job's secret, or an error if it is missing or too short for a job beyond this machine.
    pub(super) fn secret(&self) -> Result<Token, Error> {
        rendezvous::secret(&self.token, &self.coordinator)
    }
}

/// Returns the job address of this process, or `None` if `THINWIRE_MEMBER` is not set, since its job is then
/// not elastic. Address and token default to `THINWIRE_COORDINATOR` and `THINWIRE_TOKEN`. A store in
/// `THINWIRE_COORDINATOR` takes precedence over a given address.
///
/// # Errors
/// If the id or the address is malformed, or the address or the token is missing.
pub fn job_address(
    overrides: &Overrides,
    variables: Variables<'_>,
) -> Result<Option<JobAddress>, Error> {
    let Some(text) = variables(VARIABLE) else { return Ok(None) };
    let id = match text.as_str() {
        "new" => fresh_id(Role::Worker)?,
        _ => parse(&text)?,
    };
    let variable = variables("THINWIRE_COORDINATOR");
    // Where a store has the address, the given one is that at which this machine's launcher would listen.
    let store = variable.clone().filter(|address| Store::is_meant(address));
    let coordinator = store.or_else(|| overrides.coordinator.clone()).or(variable);
    let coordinator = coordinator.ok_or_else(|| {
        Error::invalid(format!("{VARIABLE} is {text}, but THINWIRE_COORDINATOR is not set"))
            .with_hint("set THINWIRE_COORDINATOR to host:port of the job's coordinator")
    })?;
    match Store::is_meant(&coordinator) {
        true => drop(coordinator.parse::<Store>()?),
        false => address::check(&coordinator)?,
    }
    let token = rendezvous::token(overrides, &coordinator, variables)?;
    Ok(Some(JobAddress { coordinator, token, id }))
}

/// Returns a random id of this role, which is not zero.
pub(super) fn fresh_id(role: Role) -> Result<Id, Error> {
    let digits = Token::random()?;
    let number = u64::from_str_radix(&digits[..16], 16).expect("hexadecimal digits");
    Ok(Id(role.id(number).0.max(1)))
}

fn parse(text: &str) -> Result<Id, Error> {
    let is_hex = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|number| is_hex && *number > 0);
    number.map(Id).ok_or_else(|| {
        Error::invalid(format!("{VARIABLE} is '{text}', expected 16 hexadecimal digits or 'new'"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_read_back_from_its_variables() {
        let expected = JobAddress::new("127.0.0.1:7", "secret").unwrap();
        let variables = expected.variables();
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        };
        assert_eq!(job_address(&Overrides::default(), &lookup).unwrap(), Some(expected.clone()));
        assert_eq!(job_address(&Overrides::default(), &|_| None).unwrap(), None);
        let overrides =
            Overrides { coordinator: Some("127.0.0.1:8".to_owned()), ..Overrides::default() };
        assert_eq!(job_address(&overrides, &lookup).unwrap().unwrap().coordinator, "127.0.0.1:8");
        let store = |name: &str| match name {
            "THINWIRE_COORDINATOR" => Some("etcd://a:1/j".to_owned()),
            _ => lookup(name),
        };
        let token = "of 16 bytes and more";
        let overrides = Overrides { token: Some(token.to_owned()), ..overrides };
        assert_eq!(job_address(&overrides, &store).unwrap().unwrap().coordinator, "etcd://a:1/j");
        let fresh = |name: &str| match name {
            VARIABLE => Some("new".to_owned()),
            _ => lookup(name),
        };
        assert_ne!(job_address(&Overrides::default(), &fresh).unwrap().unwrap().id, expected.id);
    }

    #[test]
    fn an_id_says_its_role_wherever_it_comes_from() {
        let server = JobAddress::server("127.0.0.1:7", "secret").unwrap();
        let variables = server.variables();
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        };
        assert_eq!(job_address(&Overrides::default(), &lookup).unwrap(), Some(server.clone()));
        assert!(server.id.is_server());
        // Of random ids that were not of one role, some would be of the other.
        for _ in 0..32 {
            assert!(!JobAddress::new("127.0.0.1:7", "secret").unwrap().id.is_server());
            assert!(JobAddress::server("127.0.0.1:7", "secret").unwrap().id.is_server());
        }
    }

    #[test]
    fn impossible_ids_and_missing_addresses_are_named() {
        let said = |id: &str| {
            let lookup = |name: &str| (name == VARIABLE).then(|| id.to_owned());
            job_address(&Overrides::default(), &lookup).unwrap_err().to_string()
        };
        for id in ["7", "0000000000000000", "+00000000000000f", "00000000000000000f"] {
            let expected = format!("{VARIABLE} is '{id}', expected 16 hexadecimal digits or 'new'");
            assert_eq!(said(id), expected);
        }
        let expected = "THINWIRE_MEMBER is 000000000000000f, but THINWIRE_COORDINATOR is not set";
        assert_eq!(said("000000000000000f"), expected);
    }
}
