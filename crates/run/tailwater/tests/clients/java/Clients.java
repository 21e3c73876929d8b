// Apache Kafka's own client for Java, with its defaults, or with those of a file of properties over them:
// `java -cp 'lib/*' Clients.java SERVER SCENARIO [FILE]`.
// Ends with 0 if all that the scenario says held, else with what did not.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.*;

public class Clients {
    static String server;
    static final Properties given = new Properties();

    public static void main(String[] args) throws Exception {
        server = args[0];
        if (args.length > 2) {
            try (var file = new java.io.FileReader(args[2])) {
                given.load(file);
            }
        }
        switch (args[1]) {
            case "records" -> records();
            case "admin" -> admin();
            case "refusals" -> refusals();
            case "alone" -> alone();
            case "replicas" -> replicas();
            case "ssl" -> ssl();
            case "range" -> group("group.protocol", "classic", "partition.assignment.strategy", RangeAssignor.class.getName());
            case "cooperative" -> group("group.protocol", "classic", "partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            case "kip848" -> group("group.protocol", "consumer");
            case "moving" -> moving();
            case "pattern" -> pattern();
            case "static" -> staticMembers();
            case "groups" -> groups();
            case "transactions" -> transactions();
            case "acls" -> acls();
            case "passwords" -> passwords();
            case "reauthenticates" -> reauthenticates();
            case "logins" -> logins();
            case "quotas" -> quotas();
            default -> throw new IllegalArgumentException(args[1]);
        }
    }

    // Needs the stream "news", and nobody with rights to it: who it is for is "orders".
    static void acls() throws Exception {
        var all = AclBindingFilter.ANY;
        try (var admin = adminClient()) {
            var topic = new org.apache.kafka.common.resource.ResourcePattern(
                org.apache.kafka.common.resource.ResourceType.TOPIC, "ne", org.apache.kafka.common.resource.PatternType.PREFIXED);
            var before = new HashSet<>(admin.describeAcls(all).values().get());
            var write = new AclBinding(topic, new AccessControlEntry("User:orders", "*", AclOperation.WRITE, AclPermissionType.ALLOW));
            var denied = new AclBinding(topic, new AccessControlEntry("User:orders", "10.0.0.5", AclOperation.ALL, AclPermissionType.DENY));
            admin.createAcls(List.of(write, denied)).all().get();
            var expected = new HashSet<>(before);
            expected.addAll(List.of(write, denied));
            same(expected, new HashSet<>(admin.describeAcls(all).values().get()));
            // By the name of a topic that they are about.
            var about = new AclBindingFilter(new org.apache.kafka.common.resource.ResourcePatternFilter(
                org.apache.kafka.common.resource.ResourceType.TOPIC, "news", org.apache.kafka.common.resource.PatternType.MATCH),
                new AccessControlEntryFilter("User:orders", null, AclOperation.ANY, AclPermissionType.DENY));
            same(Set.of(denied), new HashSet<>(admin.describeAcls(about).values().get()));
            same(List.of(denied), new ArrayList<>(admin.deleteAcls(List.of(about)).all().get()));
            same(List.of(), new ArrayList<>(admin.describeAcls(about).values().get()));
            var user = new org.apache.kafka.common.resource.ResourcePattern(
                org.apache.kafka.common.resource.ResourceType.USER, "orders", org.apache.kafka.common.resource.PatternType.LITERAL);
            fails(InvalidRequestException.class, admin.createAcls(List.of(
                new AclBinding(user, new AccessControlEntry("User:orders", "*", AclOperation.ALL, AclPermissionType.ALLOW)))).all());
        }
    }

    // Needs the users "ops", as whom it asks, who is the last super user, and "orders", whose password becomes another one.
    static void passwords() throws Exception {
        try (var admin = adminClient()) {
            var all = admin.describeUserScramCredentials().all().get();
            same(Set.of("ops", "orders"), all.keySet());
            same(Set.of(ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512),
                all.get("orders").credentialInfos().stream().map(ScramCredentialInfo::mechanism).collect(Collectors.toSet()));
            var fresh = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
            admin.alterUserScramCredentials(List.of(
                new UserScramCredentialUpsertion("orders", fresh, "battery staple"),
                new UserScramCredentialDeletion("orders", ScramMechanism.SCRAM_SHA_512),
                new UserScramCredentialUpsertion("fresh", fresh, "battery staple"))).all().get();
            var two = admin.describeUserScramCredentials(List.of("orders", "fresh")).all().get();
            for (var name : List.of("orders", "fresh")) same(List.of(fresh), two.get(name).credentialInfos());
            admin.alterUserScramCredentials(List.of(
                new UserScramCredentialDeletion("fresh", ScramMechanism.SCRAM_SHA_256))).all().get();
            same(Set.of("ops", "orders"), admin.describeUserScramCredentials().all().get().keySet());
            fails(ResourceNotFoundException.class, admin.describeUserScramCredentials(List.of("fresh")).description("fresh"));
            fails(ResourceNotFoundException.class, admin.alterUserScramCredentials(List.of(
                new UserScramCredentialDeletion("fresh", ScramMechanism.SCRAM_SHA_256))).all());
            fails(UnacceptableCredentialException.class, admin.alterUserScramCredentials(List.of(
                new UserScramCredentialUpsertion("orders", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), "battery staple"))).all());
            fails(PolicyViolationException.class, admin.alterUserScramCredentials(List.of(
                new UserScramCredentialDeletion("ops", ScramMechanism.SCRAM_SHA_256),
                new UserScramCredentialDeletion("ops", ScramMechanism.SCRAM_SHA_512))).all());
        }
    }

    // Needs a token in the file of `sasl.oauthbearer.token.endpoint.url` that somebody renews, good for a few seconds each:
    // the producer shows the next one on the connections that it has (KIP-368).
    static void reauthenticates() throws Exception {
        var url = given.getProperty("sasl.oauthbearer.token.endpoint.url");
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", url.substring("file://".length()));
        try (var producer = producer("linger.ms", "0")) {
            var record = new ProducerRecord<>("renewed", 0, "key", "value");
            producer.send(record).get(300, TimeUnit.SECONDS);
            // Three times on the same connections. Where the machine stands still for the rest of a token's time, there
            // are others, and it begins again.
            double connections;
            do {
                connections = metric(producer, "connection-creation-total");
                var before = metric(producer, "successful-reauthentication-total");
                while (metric(producer, "successful-reauthentication-total") < before + 3
                        && metric(producer, "connection-creation-total") == connections) {
                    producer.send(record).get(300, TimeUnit.SECONDS);
                    Thread.sleep(20);
                }
                producer.send(record).get(300, TimeUnit.SECONDS);
            } while (metric(producer, "connection-creation-total") != connections);
            same(0.0, metric(producer, "failed-reauthentication-total"));
        }
    }

    // In TLS by each mechanism, and by a certificate alone; what is given is no configuration, but has files and secrets.
    static void logins() throws Exception {
        var at = new Properties();
        at.putAll(given);
        given.clear();
        var file = at.getProperty("token.file");
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", "file://" + file);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", file);
        var tls = List.<Object>of("ssl.truststore.type", "PEM", "ssl.truststore.location", at.getProperty("ca"));
        var password = " required username=\"" + at.getProperty("user") + "\" password=\"" + at.getProperty("password") + "\";";
        for (var mechanism : List.of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate")) {
            var login = new ArrayList<Object>(tls);
            if (mechanism.equals("certificate")) {
                login.addAll(List.of("bootstrap.servers", at.getProperty("certificates"), "security.protocol", "SSL",
                    "ssl.keystore.type", "PEM", "ssl.keystore.location", at.getProperty("certificate")));
            } else {
                var module = "org.apache.kafka.common.security." + switch (mechanism) {
                    case "PLAIN" -> "plain.PlainLoginModule" + password;
                    case "OAUTHBEARER" -> "oauthbearer.OAuthBearerLoginModule required;";
                    default -> "scram.ScramLoginModule" + password;
                };
                login.addAll(List.of("security.protocol", "SASL_SSL", "sasl.mechanism", mechanism, "sasl.jaas.config", module));
            }
            if (mechanism.equals("OAUTHBEARER")) {
                login.addAll(List.of("sasl.oauthbearer.token.endpoint.url", "file://" + file, "sasl.login.callback.handler.class",
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"));
            }
            var place = new TopicPartition("logins", 0);
            long offset;
            try (var producer = producer(login.toArray())) {
                offset = producer.send(new ProducerRecord<>("logins", 0, "java", mechanism)).get(300, TimeUnit.SECONDS).offset();
            }
            try (var consumer = consumer(login.toArray())) {
                consumer.assign(List.of(place));
                consumer.seek(place, offset);
                var records = consumer.poll(Duration.ofSeconds(1));
                while (records.isEmpty()) records = consumer.poll(Duration.ofSeconds(1));
                same(mechanism, records.iterator().next().value());
            }
        }
    }

    static double metric(KafkaProducer<?, ?> producer, String name) {
        return metric(producer.metrics(), "producer-metrics", name);
    }

    static double metric(Map<MetricName, ? extends Metric> metrics, String group, String name) {
        for (var metric : metrics.entrySet()) {
            var of = metric.getKey();
            if (of.name().equals(name) && of.group().equals(group)) return (double) metric.getValue().metricValue();
        }
        throw new AssertionError("there is no " + name);
    }

    static ClientQuotaAlteration bounded(ClientQuotaEntity entity, Object... pairs) {
        var ops = new ArrayList<ClientQuotaAlteration.Op>();
        for (int i = 0; i < pairs.length; i += 2) ops.add(new ClientQuotaAlteration.Op((String) pairs[i], (Double) pairs[i + 1]));
        return new ClientQuotaAlteration(entity, ops);
    }

    // Needs the stream "quotas", and no quotas. It asks as "ops", and calls itself "app".
    static void quotas() throws Exception {
        var app = new ClientQuotaEntity(Map.of("user", "ops", "client-id", "app"));
        var each = new ClientQuotaEntity(Collections.singletonMap("client-id", null));
        var address = new ClientQuotaEntity(Map.of("ip", "10.0.0.5"));
        double rate = 100_000;
        try (var admin = adminClient()) {
            var all = ClientQuotaFilter.all();
            same(Map.of(), admin.describeClientQuotas(all).entities().get());
            admin.alterClientQuotas(List.of(
                bounded(app, "producer_byte_rate", rate, "consumer_byte_rate", rate),
                bounded(each, "request_rate", 1e6),
                bounded(address, "connection_creation_rate", 10.0))).all().get();
            var there = Map.of(
                app, Map.of("producer_byte_rate", rate, "consumer_byte_rate", rate),
                each, Map.of("request_rate", 1e6),
                address, Map.of("connection_creation_rate", 10.0));
            same(there, admin.describeClientQuotas(all).entities().get());
            var ofClients = List.of(ClientQuotaFilterComponent.ofEntityType("client-id"));
            same(Set.of(app, each), admin.describeClientQuotas(ClientQuotaFilter.contains(ofClients)).entities().get().keySet());
            same(Set.of(each), admin.describeClientQuotas(ClientQuotaFilter.containsOnly(ofClients)).entities().get().keySet());
            var ofDefault = List.of(ClientQuotaFilterComponent.ofDefaultEntity("client-id"));
            same(Set.of(each), admin.describeClientQuotas(ClientQuotaFilter.contains(ofDefault)).entities().get().keySet());
            var ofOps = List.of(ClientQuotaFilterComponent.ofEntity("user", "ops"));
            same(Set.of(app), admin.describeClientQuotas(ClientQuotaFilter.contains(ofOps)).entities().get().keySet());
            for (var wrong : List.of(
                bounded(app, "request_percentage", 50.0),
                bounded(app, "producer_byte_rate", 0.5),
                bounded(address, "producer_byte_rate", rate),
                bounded(new ClientQuotaEntity(Map.of("user", "ops", "ip", "10.0.0.5")), "request_rate", 1.0)))
                fails(InvalidRequestException.class, admin.alterClientQuotas(List.of(wrong)).all());
            fails(UnsupportedVersionException.class,
                admin.alterClientQuotas(List.of(bounded(new ClientQuotaEntity(Map.of("group", "g")), "request_rate", 1.0))).all());
            admin.alterClientQuotas(List.of(bounded(each, "request_rate", 1.0)), new AlterClientQuotasOptions().validateOnly(true)).all().get();
            same(there, admin.describeClientQuotas(all).entities().get());
        }
        var value = "x".repeat(20_000);
        var begin = System.nanoTime();
        try (var producer = producer("client.id", "app", "linger.ms", "0")) {
            for (int i = 0; i < 20; i++) producer.send(new ProducerRecord<>("quotas", 0, null, value)).get(300, TimeUnit.SECONDS);
            check(metric(producer, "produce-throttle-time-max") > 0, "it was not told");
        }
        // A second's worth is there at once, and after the last one nobody waits.
        check(System.nanoTime() - begin > 2_000_000_000L, "it was not held");
        begin = System.nanoTime();
        try (var consumer = consumer("client.id", "app")) {
            var partition = new TopicPartition("quotas", 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            for (int read = 0; read < 20; ) read += consumer.poll(Duration.ofSeconds(300)).count();
            check(metric(consumer.metrics(), "consumer-fetch-manager-metrics", "fetch-throttle-time-max") > 0, "it was not told");
        }
        check(System.nanoTime() - begin > 1_500_000_000L, "it was not held");
        try (var admin = adminClient()) {
            admin.alterClientQuotas(List.of(
                bounded(app, "producer_byte_rate", null, "consumer_byte_rate", null),
                bounded(each, "request_rate", null), bounded(address, "connection_creation_rate", null))).all().get();
            same(Map.of(), admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
        }
    }

    static void check(boolean holds, Object what) {
        if (!holds) throw new AssertionError(String.valueOf(what));
    }

    static void same(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    static Properties properties(Object... pairs) {
        var properties = new Properties();
        properties.put("bootstrap.servers", server);
        properties.putAll(given);
        for (int i = 0; i < pairs.length; i += 2) properties.put(pairs[i], pairs[i + 1]);
        return properties;
    }

    static KafkaProducer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(properties(pairs), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Object... pairs) {
        return new KafkaConsumer<>(properties(pairs), new StringDeserializer(), new StringDeserializer());
    }

    static Admin adminClient() {
        return Admin.create(properties());
    }

    // What a call that has to fail fails with.
    static Throwable failure(Future<?> future) throws Exception {
        try {
            future.get(300, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            return failed.getCause();
        }
        throw new AssertionError("it should have failed");
    }

    static void fails(Class<?> with, Future<?> future) throws Exception {
        var failure = failure(future);
        check(with.isInstance(failure), "expected " + with.getSimpleName() + ", found " + failure);
    }

    static void records() throws Exception {
        int partitions = 3, count = 6000;
        try (var admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic("java", partitions, (short) 1))).all().get();
        }
        // With its defaults a producer is idempotent and waits for all replicas.
        var sent = new ArrayList<Future<RecordMetadata>>();
        var codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (int codec = 0; codec < codecs.size(); codec++) {
            try (var producer = producer("compression.type", codecs.get(codec))) {
                for (int i = codec * count / 5; i < (codec + 1) * count / 5; i++) {
                    var record = new ProducerRecord<>("java", i % partitions, 1_700_000_000_000L + i, "key " + i, "value " + i);
                    record.headers().add(new RecordHeader("number", String.valueOf(i).getBytes(StandardCharsets.UTF_8)));
                    sent.add(producer.send(record));
                }
                producer.flush();
            }
        }
        for (int i = 0; i < count; i++) {
            var metadata = sent.get(i).get();
            same((long) (i / partitions), metadata.offset());
            same(1_700_000_000_000L + i, metadata.timestamp());
        }
        var all = IntStream.range(0, partitions).mapToObj(p -> new TopicPartition("java", p)).toList();
        try (var consumer = consumer("enable.auto.commit", "false", "check.crcs", "true")) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            var next = new long[partitions];
            for (int seen = 0; seen < count; ) {
                for (var record : consumer.poll(Duration.ofSeconds(300))) {
                    int partition = record.partition();
                    same(next[partition]++, record.offset());
                    long i = record.offset() * partitions + partition;
                    same("key " + i + "=value " + i, record.key() + "=" + record.value());
                    same(1_700_000_000_000L + i, record.timestamp());
                    same(String.valueOf(i), new String(record.headers().lastHeader("number").value(), StandardCharsets.UTF_8));
                    check(record.leaderEpoch().isPresent(), "a record has an epoch");
                    seen++;
                }
            }
            for (var partition : all) {
                same(0L, consumer.beginningOffsets(all).get(partition));
                same((long) count / partitions, consumer.endOffsets(all).get(partition));
                same((long) count / partitions, consumer.position(partition));
            }
            // The first record of a time or later; nothing after the last one.
            var times = all.stream().collect(Collectors.toMap(p -> p, p -> 1_700_000_000_000L + 300));
            for (var found : consumer.offsetsForTimes(times).entrySet()) same(100L, found.getValue().offset());
            times.replaceAll((p, t) -> 1_800_000_000_000L);
            for (var found : consumer.offsetsForTimes(times).entrySet()) same(null, found.getValue());
            consumer.seek(all.get(1), 1500);
            consumer.pause(List.of(all.get(0), all.get(2)));
            same(1500L, consumer.poll(Duration.ofSeconds(300)).iterator().next().offset());
        }
        // Far behind the end the client is told, and begins where it was told to.
        try (var consumer = consumer("auto.offset.reset", "earliest", "max.poll.records", "1")) {
            consumer.assign(List.of(all.get(2)));
            consumer.seek(all.get(2), 1_000_000);
            same(0L, consumer.poll(Duration.ofSeconds(300)).iterator().next().offset());
        }
    }

    static void admin() throws Exception {
        try (var admin = adminClient()) {
            var cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            same(1, cluster.nodes().get().size());
            same(cluster.controller().get().id(), cluster.nodes().get().iterator().next().id());
            check(!cluster.authorizedOperations().get().isEmpty(), "operations are told");

            var topic = new NewTopic("orders", 2, (short) 1)
                    .configs(Map.of("retention.ms", "3600000", "message.timestamp.type", "LogAppendTime"));
            var created = admin.createTopics(List.of(topic, new NewTopic("default", Optional.empty(), Optional.empty())));
            created.all().get();
            same(2, created.numPartitions("orders").get());
            same("3600000", created.config("orders").get().get("retention.ms").value());
            var id = created.topicId("orders").get();
            same(Set.of("orders", "default"), admin.listTopics().names().get());
            var described = admin.describeTopics(List.of("orders")).allTopicNames().get().get("orders");
            same(id, described.topicId());
            same(2, described.partitions().size());
            same(id, admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).topicId());

            // Configurations: read, changed one by one, taken back.
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
            Function<String, ConfigEntry> config = name -> {
                try {
                    var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
                    return admin.describeConfigs(List.of(resource), options).all().get().get(resource).get(name);
                } catch (Exception failed) {
                    throw new RuntimeException(failed);
                }
            };
            same("LogAppendTime", config.apply("message.timestamp.type").value());
            same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.apply("retention.ms").source());
            same(ConfigEntry.ConfigType.LONG, config.apply("retention.ms").type());
            check(config.apply("retention.ms").documentation() != null, "documented");
            same("delete", config.apply("cleanup.policy").value());
            alter(admin, resource, "segment.bytes", "1048576", AlterConfigOp.OpType.SET).get();
            same("1048576", config.apply("segment.bytes").value());
            alter(admin, resource, "retention.ms", null, AlterConfigOp.OpType.DELETE).get();
            same("604800000", config.apply("retention.ms").value());
            same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.apply("retention.ms").source());
            var only = new AlterConfigsOptions().validateOnly(true);
            var op = new AlterConfigOp(new ConfigEntry("retention.ms", "77"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(op)), only).all().get();
            same("604800000", config.apply("retention.ms").value());
            var broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(cluster.controller().get().id()));
            var node = admin.describeConfigs(List.of(broker)).all().get().get(broker);
            check(node.get("listeners").isReadOnly(), "the node's configuration is in its file");
            var group = new ConfigResource(ConfigResource.Type.GROUP, "readers");
            for (var set : Map.of(broker, "group.consumer.session.timeout.ms", group, "consumer.session.timeout.ms").entrySet()) {
                alter(admin, set.getKey(), set.getValue(), "46000", AlterConfigOp.OpType.SET).get();
                same("46000", admin.describeConfigs(List.of(set.getKey())).all().get().get(set.getKey()).get(set.getValue()).value());
                alter(admin, set.getKey(), set.getValue(), null, AlterConfigOp.OpType.DELETE).get();
                same("45000", admin.describeConfigs(List.of(set.getKey())).all().get().get(set.getKey()).get(set.getValue()).value());
            }
            fails(InvalidConfigurationException.class, alter(admin, broker, "log.retention.ms", "1", AlterConfigOp.OpType.SET));
            check(!admin.listConfigResources().all().get().isEmpty(), "resources are listed");

            // More partitions, which begin empty and take records.
            admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(5))).all().get();
            same(5, admin.describeTopics(List.of("orders")).allTopicNames().get().get("orders").partitions().size());
            long before = System.currentTimeMillis();
            try (var producer = producer()) {
                for (int i = 0; i < 100; i++) {
                    var metadata = producer.send(new ProducerRecord<>("orders", 4, 5L, null, "value " + i)).get();
                    same((long) i, metadata.offset());
                    check(metadata.timestamp() >= before, "the time of the append, not the producer's");
                }
            }

            var last = new TopicPartition("orders", 4);
            same(0L, offset(admin, last, OffsetSpec.earliest()));
            same(100L, offset(admin, last, OffsetSpec.latest()));
            same(0L, offset(admin, last, OffsetSpec.forTimestamp(before)));
            check(offset(admin, last, OffsetSpec.maxTimestamp()) >= 0, "there is a largest timestamp");
            same(-1L, offset(admin, new TopicPartition("orders", 0), OffsetSpec.maxTimestamp()));

            // Records are deleted up to an offset, or all of them.
            same(40L, admin.deleteRecords(Map.of(last, RecordsToDelete.beforeOffset(40))).lowWatermarks().get(last).get().lowWatermark());
            same(40L, offset(admin, last, OffsetSpec.earliest()));
            fails(org.apache.kafka.common.errors.OffsetOutOfRangeException.class, admin.deleteRecords(Map.of(last, RecordsToDelete.beforeOffset(101))).all());
            same(100L, admin.deleteRecords(Map.of(last, RecordsToDelete.beforeOffset(-1))).lowWatermarks().get(last).get().lowWatermark());

            var directories = admin.describeLogDirs(List.of(cluster.controller().get().id())).allDescriptions().get();
            var sizes = directories.values().iterator().next().values().iterator().next().replicaInfos();
            check(sizes.get(last).size() > 0, sizes);

            admin.deleteTopics(List.of("default")).all().get();
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
            same(Set.of(), admin.listTopics().names().get());
        }
    }

    static KafkaFuture<Void> alter(Admin admin, ConfigResource resource, String name, String value, AlterConfigOp.OpType type) {
        var op = new AlterConfigOp(new ConfigEntry(name, value), type);
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(op))).all();
    }

    static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    static void refusals() throws Exception {
        try (var admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic("there", 2, (short) 1))).all().get();
            Function<NewTopic, Future<?>> create = topic -> admin.createTopics(List.of(topic)).all();
            fails(TopicExistsException.class, create.apply(new NewTopic("there", 1, (short) 1)));
            fails(InvalidTopicException.class, create.apply(new NewTopic("no/name", 1, (short) 1)));
            fails(InvalidPartitionsException.class, create.apply(new NewTopic("x", 0, (short) 1)));
            fails(InvalidReplicationFactorException.class, create.apply(new NewTopic("x", 1, (short) 3)));
            fails(InvalidReplicaAssignmentException.class, create.apply(new NewTopic("x", Map.of(0, List.of(7)))));
            fails(InvalidConfigurationException.class,
                    create.apply(new NewTopic("x", 1, (short) 1).configs(Map.of("cleanup.policy", "compact"))));
            fails(InvalidConfigurationException.class,
                    create.apply(new NewTopic("x", 1, (short) 1).configs(Map.of("no.such", "1"))));
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "there");
            var compact = failure(alter(admin, resource, "cleanup.policy", "compact", AlterConfigOp.OpType.SET));
            check(compact instanceof InvalidConfigurationException && compact.getMessage().contains("not compacted"), compact);
            fails(InvalidConfigurationException.class, alter(admin, resource, "flush.messages", "9223372036854775807", AlterConfigOp.OpType.SET));
            fails(InvalidConfigurationException.class, alter(admin, resource, "retention.ms", "1", AlterConfigOp.OpType.APPEND));
            var missing = new ConfigResource(ConfigResource.Type.TOPIC, "missing");
            fails(UnknownTopicOrPartitionException.class, admin.describeConfigs(List.of(missing)).all());
            fails(UnknownTopicOrPartitionException.class, alter(admin, missing, "retention.ms", "1", AlterConfigOp.OpType.SET));
            fails(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of("missing")).allTopicNames());
            fails(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of("missing")).all());
            fails(UnknownTopicIdException.class, admin.deleteTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).all());
            fails(InvalidPartitionsException.class, admin.createPartitions(Map.of("there", NewPartitions.increaseTo(2))).all());
            fails(SecurityDisabledException.class, admin.describeAcls(AclBindingFilter.ANY).values());
            same(Map.of(), admin.describeUserScramCredentials().all().get());
            same(Map.of(), admin.describeClientQuotas(org.apache.kafka.common.quota.ClientQuotaFilter.all()).entities().get());
        }
        try (var producer = producer("max.request.size", "20000000", "max.block.ms", "60000")) {
            fails(RecordTooLargeException.class, producer.send(new ProducerRecord<>("there", "x".repeat(5_000_000))));
            fails(InvalidTimestampException.class,
                    producer.send(new ProducerRecord<>("there", 0, System.currentTimeMillis() + 86_400_000L, null, "tomorrow")));
            same(0L, producer.send(new ProducerRecord<>("there", 0, null, "today")).get().offset());
        }
    }

    // Where segments are in BookKeeper, with five bookies.
    static void replicas() throws Exception {
        try (var admin = adminClient()) {
            var four = new NewTopic("four", 1, (short) 4).configs(Map.of("min.insync.replicas", "2"));
            var created = admin.createTopics(List.of(four, new NewTopic("default", Optional.empty(), Optional.empty())));
            created.all().get();
            same(4, created.replicationFactor("four").get());
            same(3, created.replicationFactor("default").get());
            var described = admin.describeTopics(List.of("four", "default")).allTopicNames().get();
            for (var topic : List.of(described.get("four"), described.get("default"))) {
                var partition = topic.partitions().get(0);
                same(topic.name().equals("four") ? 4 : 3, partition.replicas().size());
                same(partition.replicas(), partition.isr());
                same(partition.replicas().get(0), partition.leader());
            }
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "four");
            Function<String, Object> value = name -> {
                try {
                    return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
                } catch (Exception wrong) {
                    return wrong;
                }
            };
            same("3", value.apply("min.insync.replicas"));
            alter(admin, resource, "min.insync.replicas", "4", AlterConfigOp.OpType.SET).get();
            same("4", value.apply("min.insync.replicas"));
            var five = failure(alter(admin, resource, "min.insync.replicas", "5", AlterConfigOp.OpType.SET));
            check(five instanceof InvalidConfigurationException && five.getMessage().contains("4 replicas"), five);
            alter(admin, resource, "min.insync.replicas", "", AlterConfigOp.OpType.DELETE).get();
            same("3", value.apply("min.insync.replicas"));
            var nine = failure(admin.createTopics(List.of(new NewTopic("nine", 1, (short) 9))).all());
            check(nine instanceof InvalidReplicationFactorException && nine.getMessage().contains("5 take entries"), nine);
            fails(InvalidReplicationFactorException.class, admin.createTopics(List.of(new NewTopic("none", 1, (short) 0))).all());
        }
    }

    // What administrators of several nodes do, with one; and what a partition knows of its producers.
    // A listener is called what it is, by whatever says so.
    static void ssl() throws Exception {
        try (var admin = adminClient()) {
            int node = admin.describeCluster().controller().get().id();
            var broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(node));
            var config = admin.describeConfigs(List.of(broker)).all().get().get(broker);
            for (var key : List.of("listeners", "advertised.listeners")) {
                check(config.get(key).value().startsWith("SSL://"), config.get(key));
            }
            var endpoints = admin.describeMetadataQuorum().quorumInfo().get().nodes().get(node).endpoints();
            same(List.of("SSL"), endpoints.stream().map(endpoint -> endpoint.listener()).toList());
        }
    }

    static void alone() throws Exception {
        try (var admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic("t", 2, (short) 1))).all().get();
            var first = new TopicPartition("t", 0);
            int node = admin.describeCluster().controller().get().id();
            try (var producer = producer()) {
                for (int i = 0; i < 3; i++) producer.send(new ProducerRecord<>("t", 0, null, "value " + i)).get();
            }
            var producers = admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers();
            same(1, producers.size());
            same(2, producers.get(0).lastSequence());
            same(OptionalLong.empty(), producers.get(0).currentTransactionStartOffset());

            var quorum = admin.describeMetadataQuorum().quorumInfo().get();
            same(node, quorum.leaderId());
            same(List.of(node), quorum.voters().stream().map(QuorumInfo.ReplicaState::replicaId).toList());
            same(List.of(), quorum.observers());
            var elected = admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions().get().get(first);
            check(elected.orElseThrow() instanceof ElectionNotNeededException, elected);
            same(Map.of(), admin.electLeaders(ElectionType.UNCLEAN, null).partitions().get());

            same(Map.of(), admin.listPartitionReassignments().reassignments().get());
            Function<List<Integer>, Future<?>> move = brokers -> admin.alterPartitionReassignments(
                    Map.of(first, Optional.ofNullable(brokers).map(NewPartitionReassignment::new))).all();
            move.apply(List.of(node)).get();
            fails(InvalidReplicaAssignmentException.class, move.apply(List.of(node, node + 1)));
            fails(NoReassignmentInProgressException.class, move.apply(null));
            var replica = new TopicPartitionReplica("t", 0, node);
            fails(LogDirNotFoundException.class, admin.alterReplicaLogDirs(Map.of(replica, "/elsewhere")).all());

            var feature = Map.of("no.such", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE));
            fails(InvalidUpdateVersionException.class, admin.updateFeatures(feature, new UpdateFeaturesOptions()).all());
        }
    }

    // A member of a group: notes what it reads, and commits it.
    static class Member extends Thread {
        static final Map<Integer, Long> next = new ConcurrentHashMap<>();
        final Set<Integer> assigned = ConcurrentHashMap.newKeySet();
        final KafkaConsumer<String, String> consumer;
        volatile boolean stop;
        volatile int generation;
        volatile Throwable failure;

        Member(String group, Object... pairs) {
            // Where members say how often they tell that they live, they do so often, to be told soon what changes.
            if (Arrays.asList(pairs).contains("classic")) {
                pairs = pairs(new Object[] {"heartbeat.interval.ms", "300", "session.timeout.ms", "300000"}, pairs);
            }
            consumer = consumer(pairs(pairs, "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                    "metadata.max.age.ms", "1000"));
            setDaemon(true);
            start();
        }

        static Object[] pairs(Object[] some, Object... more) {
            return Stream.concat(Arrays.stream(some), Arrays.stream(more)).toArray();
        }

        @Override
        public void run() {
            try (consumer) {
                consumer.subscribe(List.of("shared"), new ConsumerRebalanceListener() {
                    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                        // Before anybody sees what was assigned: the poll that this is in may go on for a while.
                        generation = consumer.groupMetadata().generationId();
                        partitions.forEach(p -> assigned.add(p.partition()));
                    }

                    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                        consumer.commitSync();
                        partitions.forEach(p -> assigned.remove(p.partition()));
                    }

                    public void onPartitionsLost(Collection<TopicPartition> partitions) {
                        partitions.forEach(p -> assigned.remove(p.partition()));
                    }
                });
                while (!stop) {
                    for (var record : consumer.poll(Duration.ofMillis(100))) {
                        // Each partition in its order; what was not committed in time may come again.
                        long expected = next.getOrDefault(record.partition(), 0L);
                        check(record.offset() <= expected, "offset " + record.offset() + " of " + record.partition() + " after " + expected);
                        next.put(record.partition(), Math.max(expected, record.offset() + 1));
                    }
                    try {
                        consumer.commitSync();
                    } catch (RebalanceInProgressException | CommitFailedException again) {
                        // It is read again, by whoever has it then.
                    }
                }
            } catch (Throwable failed) {
                failure = failed;
            }
        }

        void leave() throws Exception {
            stop = true;
            join();
            if (failure != null) throw new AssertionError(failure);
            assigned.clear();
        }
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void waitFor(String what, Condition condition, Member... members) throws Exception {
        long end = System.currentTimeMillis() + 500_000;
        while (!condition.holds()) {
            for (var member : members) if (member.failure != null) throw new AssertionError(member.failure);
            check(System.currentTimeMillis() < end, "waited for " + what);
            Thread.sleep(20);
        }
    }

    // That the members share six partitions evenly.
    static void share(Member... members) throws Exception {
        waitFor("an even share", () -> {
            var all = new TreeSet<Integer>();
            boolean even = true;
            for (var member : members) {
                even &= member.assigned.size() == 6 / members.length;
                all.addAll(member.assigned);
            }
            return even && all.size() == 6;
        }, members);
    }

    // Three members come and go while records are written; all of them are read, in order, and committed.
    static void group(Object... pairs) throws Exception {
        try (var admin = adminClient(); var producer = producer()) {
            admin.createTopics(List.of(new NewTopic("shared", 6, (short) 1))).all().get();
            var written = new long[6];
            Condition write = () -> {
                for (int i = 0; i < 600; i++) {
                    producer.send(new ProducerRecord<>("shared", i % 6, null, "value " + written[i % 6]++));
                }
                producer.flush();
                return true;
            };
            Condition read = () -> IntStream.range(0, 6).allMatch(p -> Member.next.getOrDefault(p, 0L) == written[p]);
            write.holds();
            var one = new Member("g", pairs);
            share(one);
            waitFor("the first records", read, one);
            var two = new Member("g", pairs);
            share(one, two);
            write.holds();
            waitFor("records of two", read, one, two);
            var three = new Member("g", pairs);
            share(one, two, three);
            write.holds();
            waitFor("records of three", read, one, two, three);
            two.leave();
            write.holds();
            share(one, three);
            waitFor("records after one left", read, one, three);
            one.leave();
            share(three);
            write.holds();
            waitFor("records of the last one", read, three);
            three.leave();
            var committed = admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get();
            for (int p = 0; p < 6; p++) same(written[p], committed.get(new TopicPartition("shared", p)).offset());
        }
    }

    // A group moves from the classic protocol to KIP-848's, member by member, and back, while records are written.
    static void moving() throws Exception {
        try (var admin = adminClient(); var producer = producer()) {
            admin.createTopics(List.of(new NewTopic("shared", 6, (short) 1))).all().get();
            Object[] old = {"group.protocol", "classic", "partition.assignment.strategy", CooperativeStickyAssignor.class.getName()};
            Object[] kip848 = {"group.protocol", "consumer"};
            var written = new long[6];
            Condition write = () -> {
                for (int i = 0; i < 600; i++) {
                    producer.send(new ProducerRecord<>("shared", i % 6, null, "value " + written[i % 6]++));
                }
                producer.flush();
                return true;
            };
            Condition read = () -> IntStream.range(0, 6).allMatch(p -> Member.next.getOrDefault(p, 0L) == written[p]);
            Condition isNew = () -> admin.describeConsumerGroups(List.of("g")).all().get().get("g").type() == GroupType.CONSUMER;
            write.holds();
            var one = new Member("g", old);
            var two = new Member("g", old);
            share(one, two);
            check(!isNew.holds(), "classic");
            var three = new Member("g", kip848);
            share(one, two, three);
            check(isNew.holds(), "moved");
            write.holds();
            waitFor("records of both kinds", read, one, two, three);
            one.leave();
            share(two, three);
            two.leave();
            var four = new Member("g", kip848);
            share(three, four);
            write.holds();
            waitFor("records of the new kind", read, three, four);
            var five = new Member("g", old);
            share(three, four, five);
            three.leave();
            four.leave();
            share(five);
            check(!isNew.holds(), "classic again");
            write.holds();
            waitFor("records of the old kind", read, five);
            five.leave();
            var committed = admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get();
            for (int p = 0; p < 6; p++) same(written[p], committed.get(new TopicPartition("shared", p)).offset());
        }
    }

    // A group of KIP-848 reads the topics whose whole names match, as RE2J understands the pattern: those that are there,
    // and those that are created later, until they are deleted.
    static void pattern() throws Exception {
        try (var admin = adminClient(); var producer = producer();
                // Longer than anything is waited for: what a member should have given up it keeps for so long.
                var consumer = consumer("group.id", "p", "group.protocol", "consumer", "auto.offset.reset", "earliest",
                        "max.poll.interval.ms", "3600000")) {
            var matching = Set.of("orders-eu", "orders-us");
            // What was not committed when partitions moved may come again.
            Map<String, Set<String>> read = new TreeMap<>();
            Function<Map<String, Integer>, Boolean> hasRead = counts -> read.keySet().equals(counts.keySet())
                    && counts.entrySet().stream().allMatch(count -> read.get(count.getKey()).size() == count.getValue());
            // Some to all topics: what does not match is there before what does is read.
            BiConsumer<Integer, List<String>> write = (count, topics) -> {
                for (int i = 0; i < count; i++) {
                    for (var topic : topics) producer.send(new ProducerRecord<>(topic, i % 2, null, topic));
                }
                producer.flush();
            };
            Condition poll = () -> {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    check(matching.contains(record.topic()), record.topic() + " was read");
                    read.computeIfAbsent(record.topic(), topic -> new TreeSet<>()).add(record.partition() + "@" + record.offset());
                }
                return false;
            };
            var old = List.of("old-orders-eu", "orders-eu-old", "orders", "orders-eu");
            admin.createTopics(old.stream().map(name -> new NewTopic(name, 2, (short) 1)).toList()).all().get();
            write.accept(20, old);
            consumer.subscribe(new SubscriptionPattern("orders-(?:eu|u[a-z]{1,2})"));
            waitFor("what is there", () -> poll.holds() || hasRead.apply(Map.of("orders-eu", 20)));

            var later = List.of("old-orders-us", "orders-usual", "orders-us");
            admin.createTopics(later.stream().map(name -> new NewTopic(name, 2, (short) 1)).toList()).all().get();
            write.accept(20, later);
            waitFor("what came later", () -> poll.holds() || hasRead.apply(Map.of("orders-eu", 20, "orders-us", 20)));
            Function<String, Set<TopicPartition>> both =
                    topic -> Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            var all = new HashSet<>(both.apply("orders-eu"));
            all.addAll(both.apply("orders-us"));
            same(all, consumer.assignment());

            // What is deleted is given up, and the rest goes on.
            admin.deleteTopics(List.of("orders-us")).all().get();
            waitFor("what is left", () -> poll.holds() || consumer.assignment().equals(both.apply("orders-eu")));
            write.accept(20, List.of("orders-eu"));
            waitFor("what came after", () -> poll.holds() || hasRead.apply(Map.of("orders-eu", 40, "orders-us", 20)));
        }
        // A pattern that is none is refused, in an exception that says so.
        try (var consumer = consumer("group.id", "q", "group.protocol", "consumer")) {
            consumer.subscribe(new SubscriptionPattern("orders-("));
            waitFor("a refusal", () -> {
                try {
                    consumer.poll(Duration.ofMillis(100));
                    return false;
                } catch (InvalidRegularExpression expected) {
                    return true;
                }
            });
        }
    }

    // Who has an instance id comes back to what it had, without anybody else noticing.
    static void staticMembers() throws Exception {
        try (var admin = adminClient()) {
            admin.createTopics(List.of(new NewTopic("shared", 6, (short) 1))).all().get();
            Object[] range = {"group.protocol", "classic"};
            var one = new Member("s", Member.pairs(range, "group.instance.id", "one"));
            var two = new Member("s", Member.pairs(range, "group.instance.id", "two"));
            share(one, two);
            var had = new TreeSet<>(two.assigned);
            int generation = one.generation;
            two.leave();
            var again = new Member("s", Member.pairs(range, "group.instance.id", "two"));
            share(one, again);
            same(had, new TreeSet<>(again.assigned));
            same(generation, one.generation);
            var removal = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")));
            again.leave();
            admin.removeMembersFromConsumerGroup("s", removal).all().get();
            share(one);
            one.leave();
        }
    }

    // Groups are listed, described, moved and deleted.
    static void groups() throws Exception {
        try (var admin = adminClient(); var producer = producer()) {
            admin.createTopics(List.of(new NewTopic("shared", 6, (short) 1))).all().get();
            for (int i = 0; i < 60; i++) producer.send(new ProducerRecord<>("shared", i % 6, null, "value")).get();
            var member = new Member("g", "group.protocol", "classic", "client.id", "me");
            share(member);
            waitFor("all records", () -> IntStream.range(0, 6).allMatch(p -> Member.next.getOrDefault(p, 0L) == 10), member);
            var listed = admin.listGroups().all().get();
            check(listed.stream().anyMatch(group -> group.groupId().equals("g")), listed);
            same(Set.of("shared"), admin.listTopics().names().get());
            var all = admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get();
            check(all.stream().anyMatch(topic -> topic.name().equals("__consumer_offsets") && topic.isInternal()), all);
            var described = admin.describeConsumerGroups(List.of("g")).all().get().get("g");
            same(GroupState.STABLE, described.groupState());
            same(1, described.members().size());
            var only = described.members().iterator().next();
            check(only.clientId().equals("me") && only.assignment().topicPartitions().size() == 6, only);
            fails(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of("g")).all());
            var first = new TopicPartition("shared", 0);
            fails(GroupSubscribedToTopicException.class, admin.deleteConsumerGroupOffsets("g", Set.of(first)).all());
            member.leave();
            admin.alterConsumerGroupOffsets("g", Map.of(first, new OffsetAndMetadata(3, "back"))).all().get();
            var offset = admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get().get(first);
            same("3 back", offset.offset() + " " + offset.metadata());
            try (var consumer = consumer("group.id", "g", "group.protocol", "classic")) {
                consumer.assign(List.of(first));
                same(3L, consumer.poll(Duration.ofSeconds(300)).iterator().next().offset());
            }
            admin.deleteConsumerGroupOffsets("g", Set.of(first)).all().get();
            check(!admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get().containsKey(first), "deleted");
            admin.deleteConsumerGroups(List.of("g")).all().get();
            fails(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of("g")).all());
        }
    }

    // A producer that wants transactions is told that there are none, and does not wait for them.
    static void transactions() throws Exception {
        try (var producer = producer("transactional.id", "me")) {
            producer.initTransactions();
            throw new AssertionError("it should have failed");
        } catch (TransactionalIdAuthorizationException expected) {
            // As it is to be.
        }
    }
}
