//! Decision whether ranks of one host share memory, as set in the environment.

use thinwire_link::tcp::SharedMemory;

use crate::environment::Variables;
use crate::error::Error;

/// The environment variable: auto or never.
pub const VARIABLE: &str = "THINWIRE_SHARED_MEMORY";

/// Returns whether two ranks of one host exchange data through shared memory: yes, unless the environment
/// variable is set to `never`. If it is `never` for one of the two, they use TCP.
///
/// # Errors
/// If the variable has another value.
pub fn shared_memory(variables: Variables<'_>) -> Result<SharedMemory, Error> {
    match variables(VARIABLE).as_deref() {
        None | Some("auto") => Ok(SharedMemory::Auto),
        Some("never") => Ok(SharedMemory::Never),
        Some(other) => {
            Err(Error::invalid(format!("{VARIABLE} is '{other}', expected auto or never")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_memory_unless_the_environment_says_never() {
        let found = |said: Option<&str>| {
            shared_memory(&|name: &str| said.filter(|_| name == VARIABLE).map(str::to_owned))
        };
        assert_eq!(found(None).unwrap(), SharedMemory::Auto);
        assert_eq!(found(Some("auto")).unwrap(), SharedMemory::Auto);
        assert_eq!(found(Some("never")).unwrap(), SharedMemory::Never);
        let error = found(Some("no")).unwrap_err().to_string();
        assert_eq!(error, "THINWIRE_SHARED_MEMORY is 'no', expected auto or never");
    }
}
