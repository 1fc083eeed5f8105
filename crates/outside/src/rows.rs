//! Laws of parameter servers: their answers to clients and other servers, the coordinator's decisions
//! about them, and the files of snapshots.

use thinwire_server::fuzzing;

/// Checks that any messages of clients and of another server, in any order, are either answered by a
/// parameter server or refused, and that messages and answers are written back unchanged.
pub fn rows(bytes: &[u8]) {
    fuzzing::deliver(bytes);
}

/// Checks that any requests about shards, saved states and epochs, in any order, are decided or refused
/// in one line, and that requests and states are written back unchanged.
pub fn views(bytes: &[u8]) {
    fuzzing::decide(bytes);
}

/// Checks that any text is either refused with an error of one line or read as the manifest of a
/// snapshot, which is written back unchanged.
pub fn manifest(bytes: &[u8]) {
    fuzzing::manifest(bytes);
}

/// Checks that any header and tensors are either read as the file of a shard, or refused with an error. A
/// file is written back unchanged, and its rows are accepted if each occurs once.
pub fn shard(bytes: &[u8]) {
    fuzzing::shard_file(bytes);
}
