//! Law of a parameter server towards clients and other servers.

/// Checks that any messages of clients and of another server, in any order, are answered by a parameter
/// server or refused, and that messages and answers write themselves back.
pub fn rows(bytes: &[u8]) {
    thinwire_server::fuzzing::deliver(bytes);
}
