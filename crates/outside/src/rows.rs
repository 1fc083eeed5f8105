//! Laws of parameter servers: towards clients and other servers, of the coordinator's decisions about them, and of
//! the files of snapshots.

use thinwire_server::fuzzing;

/// Checks that any messages of clients and of another server, in any order, are answered by a parameter
/// server or refused, and that messages and answers write themselves back.
pub fn rows(bytes: &[u8]) {
    fuzzing::deliver(bytes);
}

/// Checks that any requests about shards, saved states and epochs, in any order, are decided or refused in one
/// line, and that requests and states write themselves back.
pub fn views(bytes: &[u8]) {
    fuzzing::decide(bytes);
}

/// Checks that any text is the manifest of a snapshot, which writes itself back, or a one-line error.
pub fn manifest(bytes: &[u8]) {
    fuzzing::manifest(bytes);
}

/// Checks that any header and tensors are the file of a shard, which writes itself back and whose rows are taken if
/// each is there once, or an error.
pub fn shard(bytes: &[u8]) {
    fuzzing::shard_file(bytes);
}
