//! Messages of a launcher to people.

use std::fmt;
use std::time::Duration;

use super::end::End;

/// Message to people, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A member has died, and others live.
    Died {
        /// Member that died.
        member: u32,
        /// End of the member's process.
        end: End,
        /// Members that live.
        live: usize,
        /// Number of replacements that may still be started, and the time until this member's replacement
        /// starts, if it gets one.
        restarts: Option<(u32, Duration)>,
    },
    /// A signal to the launcher ends the job.
    Leaving,
    /// A second signal to the launcher kills all members.
    Killed,
    /// A member has left, and others live.
    Left {
        /// Member that left.
        member: u32,
        /// Members that live.
        live: usize,
    },
    /// The job was made larger.
    Growing {
        /// Number of ranks that the job should have.
        target: u32,
        /// Number of members that are started to reach this size.
        started: u32,
    },
    /// Members have not left in time: they are told to end at once, and then killed.
    Overdue {
        /// Word for a process of the job.
        word: &'static str,
        /// Members that are killed.
        members: Vec<u32>,
        /// Time that the members were given to leave.
        waited: Duration,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Died { member, end, live, restarts } => {
                write!(f, "member {member} {end}; {}", going_on(*live))?;
                let Some((left, wait)) = restarts else { return Ok(()) };
                f.write_str(", and one takes its place")?;
                if !wait.is_zero() {
                    let seconds = wait.as_secs_f64().ceil();
                    write!(f, " in {seconds:.0} s, since the last ones died quickly")?;
                }
                write!(f, " (restarts left: {left})")
            }
            Notice::Leaving => {
                f.write_str("told to end: the ranks leave; a second signal kills them at once")
            }
            Notice::Killed => f.write_str("ranks are killed at once, by a second signal"),
            Notice::Left { member, live } => {
                write!(f, "member {member} has left; {}", going_on(*live))
            }
            Notice::Growing { target, started } => {
                let are = if *started == 1 { "is" } else { "are" };
                write!(f, "the job is to have {target} ranks: {started} more {are} started")
            }
            Notice::Overdue { word, members, waited } => {
                let names: Vec<String> = members.iter().map(|it| format!("{word} {it}")).collect();
                let (names, seconds) = (names.join(", "), waited.as_secs());
                write!(
                    f,
                    "warning: killing {names}, which did not end within {seconds} s: a last checkpoint may be missing"
                )
            }
        }
    }
}

fn going_on(live: usize) -> String {
    match live {
        0 => "nobody continues".to_owned(),
        1 => "1 continues".to_owned(),
        _ => format!("{live} continue"),
    }
}
