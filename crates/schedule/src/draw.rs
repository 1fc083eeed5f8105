//! Schedules as text, one line a task.

use std::fmt;

use crate::{Operation, Schedule, Task};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, task) in self.tasks.iter().enumerate() {
            let mut line = format!("{index:3}  {:<41}", task.operation.to_string());
            line.push_str(&condition(task));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Encode { range, slot } => {
                write!(f, "encode  values[{range:?}] -> slot {}", slot.0)
            }
            Operation::Merge { slot, range } => {
                write!(f, "merge   slot {} -> values[{range:?}]", slot.0)
            }
            Operation::Decode { slot, range } => {
                write!(f, "decode  slot {} -> values[{range:?}]", slot.0)
            }
            Operation::Send { slot, to, message } => {
                write!(f, "send    slot {} -> {to} message {message}", slot.0)
            }
            Operation::Recv { slot, from, message } => {
                write!(f, "recv    slot {} <- {from} message {message}", slot.0)
            }
        }
    }
}

fn condition(task: &Task) -> String {
    let after: Vec<_> = task.after.iter().map(u32::to_string).collect();
    match (after.is_empty(), task.result) {
        (true, false) => String::new(),
        (true, true) => "result".to_owned(),
        (false, false) => format!("after {}", after.join(" ")),
        (false, true) => format!("after {}, result", after.join(" ")),
    }
}
