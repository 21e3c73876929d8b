//! What clients are answered, over real connections to a listener over a cell of three backends.

mod common;

use bytes::Bytes;
use tailwater_cache::protocol::{METHOD_MUTATE, encode_mutate};
use tailwater_cache::{Version, layout};
use tailwater_memcached::MemcachedConfig;

use common::{Client, ID, in_world};

/// Each line of requests, with what is answered.
async fn holds(client: &mut Client, told: &[(&str, &str)]) {
    for (requests, expected) in told {
        let requests = requests.replace('\n', "\r\n");
        assert_eq!(
            client.says(requests.as_bytes()).await.replace("\r\n", "\n"),
            *expected,
            "to {requests:?}"
        );
    }
}

#[test]
fn text_commands_are_answered_as_memcached_answers_them() {
    in_world(MemcachedConfig::default(), async |_world, mut client| {
        holds(
            &mut client,
            &[
                ("get a\n", "END\n"),
                ("set a 7 0 3\nabc\n", "STORED\n"),
                ("get a b a\n", "VALUE a 7 3\nabc\nVALUE a 7 3\nabc\nEND\n"),
                ("add a 0 0 1\nx\nadd b 1 0 1\ny\n", "NOT_STORED\nSTORED\n"),
                ("replace c 0 0 1\nx\nreplace a 8 0 2\nde\n", "NOT_STORED\nSTORED\n"),
                (
                    "append a 0 0 1\n!\nprepend a 0 0 1\n>\nget a\n",
                    "STORED\nSTORED\nVALUE a 8 4\n>de!\nEND\n",
                ),
                ("append c 0 0 1\nx\n", "NOT_STORED\n"),
                ("cas c 0 0 1 5\nx\ncas a 0 0 1 5\nx\n", "NOT_FOUND\nEXISTS\n"),
                ("set n 0 0 2\n10\nincr n 5\ndecr n 100\nincr c 1\n", "STORED\n15\n0\nNOT_FOUND\n"),
                ("incr a 1\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\n"),
                ("touch a 100\ntouch c 100\n", "TOUCHED\nNOT_FOUND\n"),
                ("gat 100 a c\n", "VALUE a 8 4\n>de!\nEND\n"),
                ("delete a\ndelete a\n", "DELETED\nNOT_FOUND\n"),
                ("set a 0 -1 1\nx\nget a\n", "STORED\nEND\n"),
                ("set a 0 0 1 noreply\nx\nincr n 7 noreply\ndelete b noreply\nget a b n\n", {
                    "VALUE a 0 1\nx\nVALUE n 0 1\n7\nEND\n"
                }),
                ("verbosity 1\nflush_all\nget a n\n", "OK\nOK\nEND\n"),
                ("nonsense\nget\nset a 0 0 1\nxyz\n", "ERROR\nERROR\nCLIENT_ERROR bad data chunk\nERROR\n"),
            ],
        )
        .await;
        let version = client.says(b"version\r\n").await;
        assert!(version.starts_with("VERSION 1.6.18-tailwater-"), "{version}");
        assert_eq!(client.ends_with(b"quit\r\n").await, "");
    });
}

#[test]
fn a_cas_unique_is_good_once_and_for_the_value_that_it_came_with() {
    in_world(MemcachedConfig::default(), async |_world, mut client| {
        holds(&mut client, &[("set a 0 0 1\nx\n", "STORED\n")]).await;
        let got = client.says(b"gets a\r\n").await;
        let unique = got.lines().next().and_then(|line| line.split(' ').nth(4)).expect("a unique").to_owned();
        let cas = format!("cas a 0 0 1 {unique}\n");
        holds(
            &mut client,
            &[
                (&format!("{cas}y\n"), "STORED\n"),
                (&format!("{cas}z\n"), "EXISTS\n"),
                ("get a\n", "VALUE a 0 1\ny\nEND\n"),
                // The same over the other commands.
                (&format!("ms a 1 C{unique}\nz\n"), "EX\n"),
                (&format!("md a C{unique}\n"), "EX\n"),
                (&format!("ms a 1 C{unique} I\nz\nmg a v\n"), "HD\nVA 1 X W\nz\n"),
            ],
        )
        .await;
    });
}

#[test]
fn meta_commands_are_answered_as_memcached_answers_them() {
    in_world(MemcachedConfig::default(), async |_world, mut client| {
        holds(
            &mut client,
            &[
                ("mg a v\nmg a v q\n", "EN\n"),
                ("ms a 3 T9000 F7 k Oabc\nabc\n", "HD ka Oabc\n"),
                ("mg a s v f k Oq h\n", "VA 3 s3 f7 ka Oq h0\nabc\n"),
                ("mg a h\nmg a u s\n", "HD h1\nHD s3\n"),
                ("ms a 1 q\nx\nms a 1 ME\ny\nms b 1 MR\ny\n", "NS\nNS\n"),
                ("ms a 1 MA\ny\nms a 1 MP\nw\nmg a v t\n", "HD\nHD\nVA 3 t-1\nwxy\n"),
                ("ms b 1 MA N6000\ny\nmg b v\nmd b q\n", "HD\nVA 1\ny\n"),
                ("ms Zm9v 1 b k\nz\nmg foo v k\nmg Zm9v b k\n", "HD kZm9v b\nVA 1 kfoo\nz\nHD kZm9v b\n"),
                ("md foo\nmd foo\nmd foo q k\nmg foo k Ox\n", "HD\nNF\nNF kfoo\nEN kfoo Ox\n"),
                ("ma n\nma n N0 J5 v\nma n v D3 M-\nma n q\n", "NF\nVA 1\n5\nVA 1\n2\n"),
                ("ma a\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\n"),
                // One of those who ask is told to make it anew.
                (
                    "mg new v N3000\nmg new v N3000\nms new 1\nn\nmg new v\n",
                    "VA 0 W\n\nVA 0 Z\n\nHD\nVA 1\nn\n",
                ),
                ("md new I T6000\nmg new v\nmg new v\n", "HD\nVA 1 X W\nn\nVA 1 Z X\nn\n"),
                (
                    "ms soon 1 T2000\ns\nmg soon R3000\nmg soon R3000\nmg soon R1000\n",
                    "HD\nHD W\nHD Z\nHD Z\n",
                ),
                // The client's own CAS unique, until the next change without one; a touch is none.
                (
                    "ms e 1 E700 c\nx\nmg e c\nmg e T0 c\ntouch e 0\nmg e c\n",
                    "HD c700\nHD c700\nHD c700\nTOUCHED\nHD c700\n",
                ),
                (
                    "ms e 1 C699\ny\nms e 1 C700 E701\ny\nms e 1 C700\nz\nmg e c v\n",
                    "EX\nHD\nEX\nVA 1 c701\ny\n",
                ),
                ("ms e 1 C702 I E800\nz\nms e 1 C650 I E801\nz\nmg e c v\n", "EX\nHD\nVA 1 c801 X W\nz\n"),
                (
                    "cas e 0 0 1 801\n5\nms e 1 E9\n7\nma e E10 c v\nmd e C9\nmd e C10 I E11\nmg e c\n",
                    "STORED\nHD\nVA 1 c10\n8\nEX\nHD\nHD c11 X W\n",
                ),
                (
                    "md e C11\nmg e N0 E5 c\nms e 1 Ex\nx\nmd e\n",
                    "HD\nHD c5 W\nCLIENT_ERROR bad command line format\nHD\n",
                ),
                (
                    "me missing\nms a 1 MX\nx\nmg\nmn\n",
                    "EN\nCLIENT_ERROR invalid mode for ms M token\nERROR\nMN\n",
                ),
            ],
        )
        .await;
        // Time passes meanwhile.
        for requests in ["mg a T5000 t\r\n", "mg a t\r\n"] {
            let told = client.says(requests.as_bytes()).await;
            let left: u64 = told.trim_end().trim_start_matches("HD t").parse().expect("a number");
            assert!((1..=5_000).contains(&left), "{told}");
        }
        let debug = client.says(b"me a\r\n").await;
        assert!(debug.starts_with("ME a exp=") && debug.contains(" fetch=yes cls=1 size=3 "), "{debug}");
    });
}

#[test]
fn statistics_tell_of_the_cell_and_of_the_listener() {
    in_world(MemcachedConfig::default(), async |_world, mut client| {
        holds(&mut client, &[("set a 0 0 3\nabc\nget a b\n", "STORED\nVALUE a 0 3\nabc\nEND\n")]).await;
        let stats = client.says(b"stats\r\n").await;
        for line in [
            "STAT cmd_get 2",
            "STAT get_hits 1",
            "STAT get_misses 1",
            "STAT cmd_set 1",
            "STAT curr_connections 1",
            "STAT limit_maxbytes ",
            "STAT evictions 0",
            "STAT uptime ",
            "STAT threads ",
            "STAT bytes ",
            "STAT cell_backends_live 3",
        ] {
            assert!(stats.contains(line), "{line} is not in {stats}");
        }
        assert!(stats.ends_with("END\r\n"));
        assert_eq!(client.says(b"stats items\r\nstats reset\r\n").await, "END\r\nRESET\r\n");
    });
}

#[test]
fn values_of_every_length_come_back_whole_and_longer_ones_are_refused() {
    let config = MemcachedConfig { values_bytes_max: 4 << 20, ..MemcachedConfig::default() };
    in_world(config, async |_world, mut client| {
        for len in [0, 1, 4_095, 4_096, 16_385, 65_536, 1 << 20] {
            let value: String = (0..len).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
            let set = format!("set k 1 0 {len}\r\n{value}\r\nget k\r\n");
            let expected = format!("STORED\r\nVALUE k 1 {len}\r\n{value}\r\nEND\r\n");
            assert!(client.says(set.as_bytes()).await == expected, "{len}");
        }
        let long = [&b"set k 0 0 1048577\r\n"[..], &[b'x'; 1_048_577], b"\r\n"].concat();
        assert_eq!(client.says(&long).await, "SERVER_ERROR object too large for cache\r\n");
        // More of them at once than there is room for.
        let refused = client.says(b"get k k k k k k\r\n").await;
        assert!(refused.ends_with("SERVER_ERROR out of memory: [memcached] values_bytes_max\r\n"));
        assert!(client.says(b"get k\r\n").await.ends_with("END\r\n"), "the room is free again");
    });
}

#[test]
fn what_is_not_allowed_is_refused_and_garbage_ends_its_own_connection_only() {
    let config = MemcachedConfig { connections_max: 2, ..MemcachedConfig::default() };
    in_world(config, async |world, mut client| {
        *world.denies.0.lock().expect("no panic") = &["flush_all"];
        holds(
            &mut client,
            &[
                ("set a 0 0 1\nx\n", "STORED\n"),
                ("flush_all\n", "CLIENT_ERROR not authorized: anonymous may not flush_all the cell m\n"),
                ("get a\n", "VALUE a 0 1\nx\nEND\n"),
            ],
        )
        .await;
        let mut other = Client::connect(&world).await;
        let told = other.ends_with(b"\x80\x00\x00\x01\x00").await;
        assert_eq!(told, "ERROR neither TLS nor the binary protocol is spoken here\r\n");
        holds(&mut client, &[("get a\n", "VALUE a 0 1\nx\nEND\n")]).await;
    });
}

#[test]
fn who_may_do_nothing_is_refused_by_every_command_and_nothing_is_done() {
    in_world(MemcachedConfig::default(), async |world, mut client| {
        holds(&mut client, &[("set a 0 0 1\n7\n", "STORED\n")]).await;
        *world.denies.0.lock().expect("no panic") = &["get", "set", "delete", "flush_all", "stats"];
        let commands = [
            ("get", "get a\n"),
            ("gets", "gets a\n"),
            ("gat", "gat 100 a\n"),
            ("gats", "gats 100 a\n"),
            ("set", "set a 0 0 1\nx\n"),
            ("add", "add b 0 0 1\nx\n"),
            ("replace", "replace a 0 0 1\nx\n"),
            ("append", "append a 0 0 1\nx\n"),
            ("prepend", "prepend a 0 0 1\nx\n"),
            ("cas", "cas a 0 0 1 1\nx\n"),
            ("delete", "delete a\n"),
            ("incr", "incr a 1\n"),
            ("decr", "decr a 1\n"),
            ("touch", "touch a 100\n"),
            ("flush_all", "flush_all\n"),
            ("stats", "stats\n"),
            ("mg", "mg a v\n"),
            ("ms", "ms a 1\nx\n"),
            ("md", "md a\n"),
            ("ma", "ma a\n"),
            ("me", "me a\n"),
        ];
        for (_, command) in commands {
            let answer = client.says(command.replace('\n', "\r\n").as_bytes()).await;
            assert!(
                answer.starts_with("CLIENT_ERROR not authorized: anonymous may not "),
                "{command}: {answer}"
            );
            assert_eq!(answer.lines().count(), 1, "{command}: {answer}");
        }
        // Every command there is, but for those that tell nothing of the cell.
        let read = [include_str!("../src/request/text.rs"), include_str!("../src/request/meta.rs")].concat();
        for arm in read.lines().filter(|line| line.trim_start().starts_with("b\"") && line.contains("=>")) {
            for word in arm.split("=>").next().expect("a pattern").split('|') {
                let word = word.trim().trim_start_matches("b\"").trim_end_matches('"');
                let is_tried = commands.iter().any(|(tried, _)| *tried == word);
                assert!(is_tried || ["version", "verbosity", "mn", "quit"].contains(&word), "{word}");
            }
        }
        *world.denies.0.lock().expect("no panic") = &[];
        holds(&mut client, &[("get a b\n", "VALUE a 0 1\n7\nEND\n")]).await;
    });
}

#[test]
fn replicas_that_do_not_agree_are_made_to_by_who_gets_the_key() {
    in_world(MemcachedConfig::default(), async |world, mut client| {
        for (backend, value) in world.backends.iter().zip([b"1", b"2", b"3"]) {
            let version = Version { timestamp_us: u64::from(value[0]), client_id: 9, sequence: 0 };
            let item = layout::encode_item(b"k", version, Some(value));
            let set = backend.call_with_pieces(METHOD_MUTATE, encode_mutate(ID, [item].iter())).await;
            set.expect("it is taken");
        }
        let key = Bytes::from_static(b"k");
        let before = world.cell.get_consistent(std::slice::from_ref(&key)).await;
        assert!(matches!(before[..], [tailwater_cache::Lookup::Failed(_)]), "{before:?}");
        let first = client.says(b"get k\r\n").await;
        assert!(
            ["2", "3"].iter().any(|value| first == format!("VALUE k 0 1\r\n{value}\r\nEND\r\n")),
            "{first}"
        );
        assert_eq!(client.says(b"get k\r\n").await, first);
    });
}

#[test]
fn increments_over_many_connections_are_all_counted() {
    in_world(MemcachedConfig::default(), async |world, mut first| {
        holds(&mut first, &[("set n 0 0 1\n0\n", "STORED\n")]).await;
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(Client::connect(&world).await);
        }
        let counting = clients.iter_mut().map(|client| async {
            let answers = client.says("incr n 1\r\n".repeat(50).as_bytes()).await;
            assert_eq!(answers.lines().count(), 50, "{answers}");
            answers.lines().map(|line| line.parse::<u64>().expect("a number")).collect::<Vec<_>>()
        });
        let mut all: Vec<u64> = futures::future::join_all(counting).await.into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (1..=400).collect::<Vec<_>>(), "each number was answered once");
    });
}
