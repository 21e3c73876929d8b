//! Commands have their settings from flags, over variables, over the configuration file, over defaults.

use std::path::Path;

use crate::support::{Node, Process, tailwater, told, wait_for};

/// What a command says, which succeeds with this configuration file, and these variables.
fn says(file: &Path, variables: &[(&str, &str)], args: &[&str], input: &str) -> String {
    let mut command = tailwater();
    command.args(args).env("TAILWATER_CONFIG", file).envs(variables.iter().copied());
    let (ended, said, why) = told(&mut command, input);
    assert!(ended, "{args:?}: {why}");
    said
}

/// The same of one that fails.
fn complains(file: &Path, variables: &[(&str, &str)], args: &[&str]) -> String {
    let mut command = tailwater();
    command.args(args).env("TAILWATER_CONFIG", file).envs(variables.iter().copied());
    let (ended, _, why) = told(&mut command, "");
    assert!(!ended, "{args:?} should fail");
    why
}

#[test]
fn a_node_and_the_commands_that_talk_to_it_have_one_file_under_variables_under_flags() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    let commands = "[client.stream.create]\nshards = 3\n\
                    [client.produce]\ncodec = 'zstd'\noutput = 'json'\nkey_delimiter = '='\n\
                    [client.consume]\nformat = 'file %k %v\\n'\n";
    let write = |more: &str| std::fs::write(&file, format!("[metrics]\nstreams_max = 7\n{commands}{more}"));
    write("").expect("written");
    let node = Node::start_with(
        &dir.path().join("data"),
        &["--config", file.to_str().expect("text")],
        &[("TAILWATER_METRICS__QUEUES_MAX", "9")],
    );
    write(&format!("[client]\nserver = '{}'\n", node.admin)).expect("written");

    says(&file, &[], &["stream", "create", "s"], "");
    let stream: serde_json::Value =
        serde_json::from_str(&says(&file, &[], &["stream", "describe", "s", "-o", "json"], ""))
            .expect("JSON");
    assert_eq!(stream["config"]["shards"], 3);
    let acked = says(&file, &[], &["produce", "s", "--shard", "1"], "tea=4.20\n");
    let acked: serde_json::Value = serde_json::from_str(&acked).expect("JSON, as the file says");
    assert_eq!(acked["count"], 1);

    let consume = ["consume", "s", "--exit-at-end"];
    let variable = [("TAILWATER_CONSUME_FORMAT", "variable %k %v\\n")];
    assert_eq!(says(&file, &[], &consume, ""), "file tea 4.20\n");
    assert_eq!(says(&file, &variable, &consume, ""), "variable tea 4.20\n");
    let flags = [&consume[..], &["--format", "flag %k %v\\n"]].concat();
    assert_eq!(says(&file, &variable, &flags, ""), "flag tea 4.20\n");
    let elsewhere = [("TAILWATER_SERVER", "127.0.0.1:1")];
    assert!(complains(&file, &elsewhere, &consume).contains("127.0.0.1:1"));
    for wrong in ["no-port", ""] {
        let told = complains(&file, &[("TAILWATER_SERVER", wrong)], &consume);
        assert!(told.contains("tailwater: TAILWATER_SERVER: ") && !told.contains("panicked"), "{told}");
    }
    let flags = [&["--server", &node.admin], &consume[..]].concat();
    assert_eq!(says(&file, &elsewhere, &flags, ""), "file tea 4.20\n");

    // What is printed is a file that comes to the same.
    let printed = says(&file, &variable, &["consume", "--print-config", "--window-bytes", "8192"], "");
    let shown: toml::Table = printed.parse().expect("TOML");
    assert_eq!(shown["client"]["server"].as_str(), Some(&*node.admin));
    let told = &shown["client"]["consume"];
    let expected = (Some("variable %k %v\\n"), Some(8_192), Some("auto"));
    assert_eq!(
        (told["format"].as_str(), told["window_bytes"].as_integer(), told["transport"].as_str()),
        expected
    );
    let other = dir.path().join("printed.toml");
    std::fs::write(&other, &printed).expect("written");
    assert_eq!(says(&other, &[], &consume, ""), "variable tea 4.20\n");
    assert_eq!(says(&other, &[], &["consume", "--print-config"], ""), printed);
    let serve = says(&file, &[], &["serve", "--print-config"], "").parse::<toml::Table>().expect("TOML");
    assert_eq!(serve["metrics"]["streams_max"].as_integer(), Some(7));
}

#[test]
fn a_consumer_that_is_told_its_shard_is_not_in_the_group_that_a_variable_names() {
    let (dir, node) = Node::start_anew();
    let file = dir.path().join("tailwater.toml");
    std::fs::write(&file, format!("[client]\nserver = '{}'\n", node.admin)).expect("written");
    says(&file, &[], &["stream", "create", "s", "--shards", "2"], "");
    says(&file, &[], &["produce", "s", "--shard", "1"], "one\n");
    let group = [("TAILWATER_CONSUME_GROUP", "g")];
    let of_shard = ["consume", "s", "--shard", "1", "--exit-at-end"];
    assert_eq!(says(&file, &group, &of_shard, ""), "one\n");
    assert!(!says(&file, &[], &["group", "ls", "-o", "json"], "").contains("\"g\""));
    assert_eq!(says(&file, &group, &["consume", "s", "--exit-at-end"], ""), "one\n");
    assert!(says(&file, &[], &["group", "ls", "-o", "json"], "").contains("\"g\""));
}

#[test]
fn a_dead_letter_queue_and_how_often_is_received_before_are_given_together_wherever_each_is() {
    let (dir, node) = Node::start_anew();
    let file = dir.path().join("tailwater.toml");
    let write = |more: &str| {
        std::fs::write(&file, format!("[client]\nserver = '{}'\n{more}", node.admin)).expect("written");
    };
    write("");
    says(&file, &[], &["queue", "create", "dead"], "");
    let with_letters = ["queue", "create", "work", "--dead-letter-queue", "dead"];
    let alone = complains(&file, &[], &with_letters);
    assert!(alone.contains("without --max-receives"), "{alone}");
    let alone = complains(&file, &[], &["queue", "create", "work", "--max-receives", "5"]);
    assert!(alone.contains("without --dead-letter-queue"), "{alone}");
    write("[client.queue.create]\nmax_receives = 5\n");
    says(&file, &[], &with_letters, "");
    let described = says(&file, &[], &["queue", "describe", "work", "-o", "json"], "");
    assert!(described.contains("RedrivePolicy"), "{described}");
    // Without such a queue it means nothing.
    says(&file, &[], &["queue", "create", "other"], "");
    let described = says(&file, &[], &["queue", "describe", "other", "-o", "json"], "");
    assert!(!described.contains("RedrivePolicy"), "{described}");
}

#[test]
fn what_is_misspelt_in_the_file_or_in_a_variable_is_refused_with_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    let missing = complains(&file, &[], &["stream", "ls"]);
    assert!(missing.contains("tailwater.toml"), "{missing}");
    for (text, variables, named) in [
        ("[client]\nservre = 'x'\n", &[][..], "[client] has no servre"),
        ("[client.produce]\ncodecs = 'zstd'\n", &[], "[client.produce] has no codecs"),
        (
            "[client.produce]\ndeadline_ms = 'soon'\n",
            &[],
            "[client.produce] deadline_ms: invalid value 'soon'",
        ),
        ("", &[("TAILWATER_STREAM_LS_OUTPUT", "xml")], "TAILWATER_STREAM_LS_OUTPUT: invalid value 'xml'"),
        ("", &[("TAILWATER_STREAM_LS_OUT", "json")], "TAILWATER_STREAM_LS_OUT names no option"),
    ] {
        std::fs::write(&file, text).expect("written");
        let why = complains(&file, variables, &["stream", "ls"]);
        assert!(why.contains(named), "{why}");
    }
    let nothing = complains(&file, &[], &["completion", "bash", "--print-config"]);
    assert!(nothing.contains("has no configuration to print"), "{nothing}");
}

#[test]
fn a_listener_off_loopback_is_refused_by_a_flag_a_variable_or_a_file_and_taken_where_it_is_meant() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    let check = ["serve", "--config-check"];
    for flag in ["--listen", "--admin", "--kafka", "--sqs", "--broadcast"] {
        std::fs::write(&file, "").expect("written");
        let open = [&check[..], &[flag, "192.0.2.1:1"]].concat();
        let error = complains(&file, &[], &open);
        assert!(
            error.contains("\"192.0.2.1:1\"") && error.contains("insecure = true, or TAILWATER_LISTEN"),
            "{error}"
        );
        says(&file, &[], &[&open[..], &["--insecure"]].concat(), "");
        says(&file, &[("TAILWATER_LISTEN__INSECURE", "true")], &open, "");
        std::fs::write(&file, "[listen]\ninsecure = true\n").expect("written");
        says(&file, &[], &open, "");
        let name = if flag == "--listen" { "data" } else { &flag[2..] };
        says(&file, &[("TAILWATER_LISTEN__INSECURE", &format!("[{name}]"))], &open, "");
    }
    std::fs::write(&file, "[broadcast.http]\nlisten = '192.0.2.1:1'\n").expect("written");
    let error = complains(&file, &[], &check);
    assert!(error.contains("[broadcast.http] listen = \"192.0.2.1:1\""), "{error}");
    let variable = [("TAILWATER_KAFKA__LISTENERS", "[{listen=\"192.0.2.1:1\"}]")];
    std::fs::write(&file, "").expect("written");
    let error = complains(&file, &variable, &check);
    assert!(error.contains("[[kafka.listeners]] listen = \"192.0.2.1:1\""), "{error}");
}

#[test]
fn a_variable_that_looks_like_a_number_is_the_text_that_its_key_takes() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    std::fs::write(&file, "").expect("written");
    let variables = [("TAILWATER_SQS__ACCOUNT", "012345678901"), ("TAILWATER_TLS__CA", "7")];
    let printed = says(&file, &variables, &["serve", "--print-config"], "");
    let printed = printed.parse::<toml::Table>().expect("TOML");
    assert_eq!(printed["sqs"]["account"].as_str(), Some("012345678901"));
    assert_eq!(printed["tls"]["ca"].as_str(), Some("7"));
}

#[test]
fn a_backend_off_loopback_is_refused_and_begins_where_it_is_meant() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    std::fs::write(&file, "").expect("written");
    let serve = ["cache", "serve", "--cell", "data", "--tcp", "0.0.0.0:0", "--capacity-bytes", "1048576"];
    let error = complains(&file, &[], &serve);
    assert!(error.contains("--tcp 0.0.0.0:0") && error.contains("--insecure"), "{error}");
    let mut command = tailwater();
    let backend = Process::start(command.args(serve).arg("--insecure"), &dir.path().join("backend.log"));
    wait_for("the backend to be ready", || backend.log().contains("the backend is ready").then_some(()));
}

#[test]
fn secrets_of_variables_and_files_are_not_printed_and_three_stars_are_no_secret() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tailwater.toml");
    std::fs::write(&file, "").expect("written");
    let print = ["serve", "--print-config"];
    let accounts = "[{id=\"123456789012\", keys=[{id=\"AK\", secret=\"hidden one\"}]}]";
    let variables =
        [("TAILWATER_SQS__ACCOUNTS", accounts), ("TAILWATER_QUEUES__CASSANDRA__PASSWORD", "hidden two")];
    let printed = says(&file, &variables, &print, "");
    assert!(!printed.contains("hidden") && printed.matches("\"***\"").count() == 2, "{printed}");

    std::fs::write(&file, &printed).expect("written");
    let error = complains(&file, &[], &["serve", "--config-check"]);
    assert!(error.contains("stands for a secret") && error.contains("tailwater.toml"), "{error}");
    // What goes over the file has them.
    assert_eq!(says(&file, &variables, &print, ""), printed);

    let secret = dir.path().join("password");
    std::fs::write(&secret, "hidden three\n").expect("written");
    std::fs::write(&file, format!("[queues.cassandra]\npassword_file = {secret:?}\n")).expect("written");
    let printed = says(&file, &[], &print, "");
    assert!(!printed.contains("hidden") && printed.contains("password_file"), "{printed}");
    std::fs::write(&file, &printed).expect("written");
    assert_eq!(says(&file, &[], &print, ""), printed);

    for (text, variables) in [
        ("[queues.cassandra]\npassword = 'hidden four\n", &[][..]),
        ("[queues.cassandra]\npassword = 4711\n", &[]),
        ("", &[("TAILWATER_SQS__ACCOUNTS", "[{id=hidden five")]),
    ] {
        std::fs::write(&file, text).expect("written");
        let error = complains(&file, variables, &["serve", "--config-check"]);
        assert!(!error.contains("hidden") && !error.contains("4711"), "{error}");
    }
}
