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
        "port {port} of 127.0.0.1 is held by another program, expected it free or shared by thinwire"
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
    let said = format!("port {port} of 127.0.0.1 is held by another program");
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
