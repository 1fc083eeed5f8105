//! How ranks are reached: behind which port, and at addresses of which kind.

mod support;

use support::Folder;

/// `--port` is that of the ranks: with one that another program has, none of them meets.
#[test]
fn ranks_are_reached_behind_the_port_that_the_flag_or_the_environment_names() {
    let folder = Folder::new("port");
    let port = support::free_port().to_string();
    let flags = ["--ranks", "2", "--steps", "2"];
    let by_flag = [flags.as_slice(), &["--port", &port]].concat();
    folder.train(&by_flag).done();
    let taken = std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let said = format!(
        "port {port} of 127.0.0.1 is in use by another program, expected a port that is free or shared by thinwire"
    );
    let ended = folder.train(&by_flag);
    assert!(ended.error().contains(&said), "{}", ended.stderr);
    assert!(ended.hint().contains("another port"), "{}", ended.stderr);
    let bench =
        ["run", "--port", &port, "--", env!("CARGO_BIN_EXE_thinwire"), "bench", "collective"];
    let ended = folder.run(&bench);
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    let mut command = folder.command(&support::train_arguments(&flags));
    command.env("THINWIRE_PORT", &port);
    let ended = support::finish(command.spawn().unwrap());
    assert!(ended.error().contains(&said), "{}", ended.stderr);
    drop(taken);
}

/// Others do not wait for a rank whose variables are no settings.
#[test]
fn a_rank_whose_port_is_none_is_not_waited_for() {
    let folder = Folder::new("port-none");
    let coordinator = format!("127.0.0.1:{}", support::free_port());
    let rank = |rank: &str, port: &str| {
        let flags = ["--rank", rank, "--world", "2", "--coordinator", &coordinator];
        let mut command = folder.command(&support::train_arguments(&flags));
        command.env("THINWIRE_PORT", port).spawn().unwrap()
    };
    let port = support::free_port().to_string();
    let [zero, one] = [rank("0", &port), rank("1", "http")].map(support::finish);
    let said = "THINWIRE_PORT is 'http', expected 1 to 65535";
    assert_eq!(one.error(), format!("error: {said}"));
    assert_eq!(zero.error(), format!("error: rank 1 does not come: {said}"));
}

/// Servers share the port of the ranks, unless their address has one.
#[test]
fn servers_are_reached_behind_the_port_of_the_ranks() {
    let folder = Folder::new("port-servers");
    let port = support::free_port().to_string();
    let servers = ["--mode", "server", "--servers", "2", "--optimizer", "sgd:lr=0.1"];
    let flags = ["--ranks", "2", "--steps", "2", "--port", &port];
    folder.train(&[flags.as_slice(), &servers].concat()).done();
    let taken = std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let mut command = folder.command(&["server", "--coordinator", "127.0.0.1:9"]);
    let ended = support::finish(command.env("THINWIRE_PORT", &port).spawn().unwrap());
    let said = format!("port {port} of 127.0.0.1 is in use by another program");
    assert!(ended.error().contains(&said), "{}", ended.stderr);
    drop(taken);
}

/// Addresses are IPv4, IPv6 in brackets, or names.
#[test]
fn ranks_meet_at_addresses_of_either_family_and_at_names() {
    let folder = Folder::new("families");
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let coordinator = format!("{host}:{}", support::free_port());
        let rank = |rank: &str| {
            let flags = ["--rank", rank, "--world", "2", "--coordinator", &coordinator];
            let train = ["--steps", "2", "--metrics", &format!("{host}:0")];
            let arguments = [flags.as_slice(), &train].concat();
            folder.command(&support::train_arguments(&arguments)).spawn().unwrap()
        };
        for ended in support::finish_all([rank("0"), rank("1")]) {
            ended.done();
        }
    }
    // torchrun's variables have the host alone.
    let port = support::free_port().to_string();
    let rank = |rank: &str| {
        let mut command = folder.command(&support::train_arguments(&["--steps", "2"]));
        let variables =
            [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", &port)];
        command.envs(variables).spawn().unwrap()
    };
    for ended in support::finish_all([rank("0"), rank("1")]) {
        ended.done();
    }
}

/// What ranks share would be longer than any file of theirs may be, and they would be killed for it.
#[test]
fn ranks_under_a_limit_on_files_share_no_memory() {
    let folder = Folder::new("files");
    let limited = ["sh", "-c", "ulimit -f 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_thinwire")];
    let train = support::train_arguments(&["--steps", "2", "--checkpoint-dir", "none"]);
    folder.run(&[&["run", "--ranks", "2", "--"], &limited[..], &train].concat()).done();
}
