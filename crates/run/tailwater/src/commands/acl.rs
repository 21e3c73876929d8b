//! `tailwater acl …`

use clap::{ArgGroup, Subcommand};
use tailwater_node::api::{AccessRule, Effect, Enforcement, Operation, ResourceKind, RuleQuery, RulesView};

use crate::admin::{Server, escaped};
use crate::output::{self, Format};

/// What stands for all.
const ALL: &str = "*";

/// What to do with rules.
#[derive(Subcommand)]
pub enum Command {
    /// Add rules: one for each operation and resource that is named. Rules that are there stay.
    #[command(group = ArgGroup::new("operations").args(["allow", "deny"]).required(true))]
    Add {
        /// The rule's user: a user's name, the subject of a certificate (CN=alice,O=Example), an account of SQS, a user
        /// of the system on a Unix socket (uid:1000) or a group of it (gid:100), or * for everybody.
        #[arg(long, value_name = "NAME")]
        user: String,
        /// Allowed operations: read, write, create, delete, alter, describe, cluster_action, describe_configs,
        /// alter_configs, idempotent_write, all. Separate several by commas.
        #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
        allow: Vec<Operation>,
        /// Forbidden operations. They are refused even if another rule allows them.
        #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
        deny: Vec<Operation>,
        #[command(flatten)]
        resources: Resources,
        /// The address that the request comes from. By default any.
        #[arg(long, value_name = "ADDRESS", default_value = ALL)]
        host: String,
    },
    /// List rules: all of them, or those about a user, an operation or a resource.
    #[command(visible_alias = "list")]
    Ls {
        #[command(flatten)]
        which: Which,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Remove the rules that are about all that is named.
    #[command(visible_alias = "remove")]
    Rm {
        #[command(flatten)]
        which: Which,
    },
}

/// What rules are about. A name that ends with * stands for all names that begin so.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub struct Resources {
    /// A stream: a topic of Kafka's.
    #[arg(long, alias = "topic", value_name = "NAME")]
    stream: Vec<String>,
    /// A consumer group of Kafka's.
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// A queue, as ACCOUNT/NAME.
    #[arg(long, value_name = "NAME")]
    queue: Vec<String>,
    /// A broadcast stream, as REGION/NAME.
    #[arg(long, value_name = "NAME")]
    broadcast: Vec<String>,
    /// A cell: data, metadata or a created one. The right to read covers everything in it.
    #[arg(long, value_name = "NAME")]
    cell: Vec<String>,
    /// The node itself: Kafka's cluster.
    #[arg(long)]
    node: bool,
}

impl Resources {
    /// Rules that let a principal do all of this with all of it.
    pub fn allowed_to(self, principal: &str, operations: &[Operation]) -> Vec<AccessRule> {
        let named = self.named();
        let rules = named.iter().flat_map(|(kind, pattern)| {
            operations.iter().map(|operation| AccessRule {
                principal: principal.to_owned(),
                effect: Effect::Allow,
                operation: *operation,
                kind: *kind,
                name: pattern.name.clone(),
                is_prefix: pattern.is_prefix,
                host: ALL.to_owned(),
            })
        });
        rules.collect()
    }

    fn named(self) -> Vec<(ResourceKind, NamePattern)> {
        let of = |kind, names: Vec<String>| names.into_iter().map(move |name| (kind, NamePattern::of(name)));
        let node = self.node.then(|| ResourceKind::NODE_NAME.to_owned());
        of(ResourceKind::Stream, self.stream)
            .chain(of(ResourceKind::Group, self.group))
            .chain(of(ResourceKind::Queue, self.queue))
            .chain(of(ResourceKind::Broadcast, self.broadcast))
            .chain(of(ResourceKind::Cell, self.cell))
            .chain(of(ResourceKind::Node, Vec::from_iter(node)))
            .collect()
    }
}

/// A name, or how names begin.
struct NamePattern {
    name: String,
    is_prefix: bool,
}

impl NamePattern {
    fn of(text: String) -> Self {
        match text.strip_suffix(ALL).filter(|begin| !begin.is_empty()) {
            Some(begin) => Self { name: begin.to_owned(), is_prefix: true },
            None => Self { name: text, is_prefix: false },
        }
    }
}

/// Which rules.
#[derive(clap::Args)]
pub struct Which {
    /// Those about this user.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Those that allow.
    #[arg(long, conflicts_with = "deny")]
    allow: bool,
    /// Those that forbid.
    #[arg(long)]
    deny: bool,
    /// Those with this operation.
    #[arg(long, value_name = "OPERATION")]
    operation: Option<Operation>,
    #[command(flatten)]
    about: About,
    /// Those about this address.
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
}

/// What they are about, as it was written when they were added.
#[derive(clap::Args)]
#[group(multiple = false)]
struct About {
    /// Those about this stream.
    #[arg(long, alias = "topic", value_name = "NAME")]
    stream: Option<String>,
    /// Those about this group.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Those about this queue.
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Those about this broadcast stream.
    #[arg(long, value_name = "NAME")]
    broadcast: Option<String>,
    /// Those about this cell.
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// Those about the node.
    #[arg(long)]
    node: bool,
}

impl About {
    fn named(self) -> Option<(ResourceKind, NamePattern)> {
        let node = self.node.then(|| ResourceKind::NODE_NAME.to_owned());
        let all = [
            (ResourceKind::Stream, self.stream),
            (ResourceKind::Group, self.group),
            (ResourceKind::Queue, self.queue),
            (ResourceKind::Broadcast, self.broadcast),
            (ResourceKind::Cell, self.cell),
            (ResourceKind::Node, node),
        ];
        all.into_iter().find_map(|(kind, name)| Some((kind, NamePattern::of(name?))))
    }
}

impl Which {
    fn query(self) -> RuleQuery {
        let effect = match (self.allow, self.deny) {
            (true, _) => Some(Effect::Allow),
            (false, true) => Some(Effect::Deny),
            (false, false) => None,
        };
        let (kind, pattern) = self.about.named().unzip();
        let (name, is_prefix) = pattern.map(|NamePattern { name, is_prefix }| (name, is_prefix)).unzip();
        let (principal, operation) = (self.user, self.operation);
        RuleQuery { principal, effect, operation, kind, name, is_prefix, host: self.host }
    }
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add { user, allow, deny, resources, host } => {
            let allowed = allow.into_iter().map(|operation| (Effect::Allow, operation));
            let denied = deny.into_iter().map(|operation| (Effect::Deny, operation));
            let operations: Vec<_> = allowed.chain(denied).collect();
            let rule = |kind, pattern: &NamePattern, (effect, operation)| AccessRule {
                principal: user.clone(),
                effect,
                operation,
                kind,
                name: pattern.name.clone(),
                is_prefix: pattern.is_prefix,
                host: host.clone(),
            };
            let resources = resources.named();
            let about = resources.iter().flat_map(|(kind, pattern)| {
                operations.iter().map(|operation| rule(*kind, pattern, *operation))
            });
            let added: RulesView = server.post("/v1/rules", &about.collect::<Vec<_>>())?;
            show(&added)?;
            if added.enforcement != Enforcement::Enforce {
                eprintln!(
                    "tailwater: the node refuses nobody yet: [access] rules is {}, and has to be \"enforce\" for that",
                    if added.enforcement == Enforcement::Off { "off" } else { "\"report\"" }
                );
            }
            Ok(())
        }
        Command::Ls { which, output } => {
            let listed: RulesView = server.get(&path(which)?)?;
            match output {
                Format::Json => output::print_json(&listed),
                Format::Table => table(&listed),
            }
        }
        Command::Rm { which } => {
            let query = which.query();
            anyhow::ensure!(
                query != RuleQuery::default(),
                "which rules? Name at least one of --user, --allow, --deny, --operation, --host, and what they are about"
            );
            show(&server.delete(&path_of(&query)?)?)
        }
    }
}

fn path(which: Which) -> anyhow::Result<String> {
    path_of(&which.query())
}

fn path_of(query: &RuleQuery) -> anyhow::Result<String> {
    let serde_json::Value::Object(said) = serde_json::to_value(query)? else { unreachable!("a struct") };
    let said = said.iter().map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={}", escaped(&text))
    });
    Ok(format!("/v1/rules?{}", said.collect::<Vec<_>>().join("&")))
}

fn show(rules: &RulesView) -> anyhow::Result<()> {
    rules.rules.iter().try_for_each(output::print)
}

fn table(rules: &RulesView) -> anyhow::Result<()> {
    let mut table = output::table(&["user", "", "operation", "kind", "name", "host"]);
    for rule in &rules.rules {
        let effect = if rule.effect == Effect::Allow { "allow" } else { "deny" };
        let end = if rule.is_prefix { ALL } else { "" };
        let (operation, kind) = (rule.operation.name(), rule.kind.name());
        let name = format!("{}{end}", rule.name);
        table.add_row([&*rule.principal, effect, operation, kind, &name, &rule.host]);
    }
    output::print(&table)
}
