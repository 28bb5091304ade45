import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * Counts and sums by key with Kafka Streams, as one would write it: JSON by Jackson, a RocksDB store, its changelog, standard settings.
 * Speaks the protocol of race.py. All records are visible when the stores hold them and, under exactly_once_v2, their offsets are
 * committed.
 *
 * <p>Arguments: bootstrap, topic, records, warm-up topic, warm-up records, guarantee, threads, state folder, and "reset" for one that has
 * read the topic before, and is to read it again: as the application reset tool does it, its group and its internal topics are deleted, and
 * so is its local state.
 */
public final class CountAndSum {
    private static final ObjectReader JSON = new ObjectMapper().reader();

    record Total(long count, long amount) {
        static Total zero() {
            return new Total(0, 0);
        }

        Total plus(long more) {
            return new Total(count + 1, amount + more);
        }

        Total plus(Total other) {
            return new Total(count + other.count, amount + other.amount);
        }

        Total minus(long less) {
            return new Total(count - 1, amount - less);
        }

        static byte[] write(Total total) {
            return total == null ? null : ByteBuffer.allocate(16).putLong(total.count).putLong(total.amount).array();
        }

        static Total read(byte[] bytes) {
            if (bytes == null) return null;
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return new Total(buffer.getLong(), buffer.getLong());
        }
    }

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], guarantee = args[5], threads = args[6], folder = args[7];
        boolean reset = args.length > 8 && args[8].equals("reset");
        work(bootstrap, args[3], Long.parseLong(args[4]), guarantee, threads, folder, true);
        if (reset) work(bootstrap, args[1], Long.parseLong(args[2]), guarantee, threads, folder, true);
        System.out.println("{\"event\": \"ready\"}");
        if (!"go".equals(new BufferedReader(new InputStreamReader(System.in)).readLine())) System.exit(2);
        if (reset) reset(bootstrap, application(args[1], guarantee), Path.of(folder));
        work(bootstrap, args[1], Long.parseLong(args[2]), guarantee, threads, folder, false);
        System.exit(0);
    }

    private static String application(String topic, String guarantee) {
        return "bench-" + topic + "-" + guarantee;
    }

    private static void reset(String bootstrap, String app, Path folder) throws Exception {
        long began = System.nanoTime();
        try (Admin admin = admin(bootstrap)) {
            leave(admin, app);
            admin.deleteConsumerGroups(List.of(app)).all().get();
            List<String> internal =
                    admin.listTopics().names().get().stream().filter(name -> name.startsWith(app + "-")).toList();
            admin.deleteTopics(internal).all().get();
            while (admin.listTopics().names().get().stream().anyMatch(internal::contains)) Thread.sleep(10);
        }
        try (var files = Files.walk(folder.resolve(app))) {
            files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        }
        System.out.printf("{\"event\": \"reset\", \"seconds\": %.3f}%n", (System.nanoTime() - began) / 1e9);
    }

    private static void work(
            String bootstrap, String topic, long records, String guarantee, String threads, String folder, boolean warmUp)
            throws Exception {
        LongAdder seen = new LongAdder();
        CountDownLatch first = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), json()))
                .groupByKey()
                .aggregate(
                        Total::zero,
                        (key, value, total) -> {
                            seen.increment();
                            return total.plus(value.get("amount").longValue());
                        },
                        Materialized.<String, Total, KeyValueStore<Bytes, byte[]>>as("totals")
                                .withKeySerde(Serdes.String())
                                .withValueSerde(totals()));

        String app = application(topic, guarantee);
        Properties settings = settings(bootstrap, app, guarantee, threads, folder);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
                Admin admin = admin(bootstrap)) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) first.countDown();
            });
            streams.start();
            first.await();
            if (!warmUp) System.out.println("{\"event\": \"first\"}");
            while (seen.sum() < records) Thread.sleep(10);
            if (guarantee.equals(StreamsConfig.EXACTLY_ONCE_V2)) {
                while (!committed(admin, app, List.of(topic))) Thread.sleep(10);
            }
            if (warmUp) return;
            System.out.println("{\"event\": \"visible\"}");
            long keys = 0, count = 0, amount = 0;
            var query = StoreQueryParameters.fromNameAndType("totals", QueryableStoreTypes.<String, Total>keyValueStore());
            try (KeyValueIterator<String, Total> all = streams.store(query).all()) {
                while (all.hasNext()) {
                    Total total = all.next().value;
                    keys += 1;
                    count += total.count;
                    amount += total.amount;
                }
            }
            System.out.printf("{\"event\": \"answer\", \"keys\": %d, \"records\": %d, \"amount\": %d}%n", keys, count, amount);
        }
    }

    static Admin admin(String bootstrap) {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static Properties settings(String bootstrap, String app, String guarantee, String threads, String folder) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, app);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }

    /** Takes the members of instances that are closed out of their group: the next instance would wait for them. */
    static void leave(Admin admin, String app) throws Exception {
        if (!admin.describeConsumerGroups(List.of(app)).describedGroups().get(app).get().members().isEmpty()) {
            admin.removeMembersFromConsumerGroup(app, new RemoveMembersFromConsumerGroupOptions()).all().get();
        }
    }

    /** Lists the topics that an app reads: those named, and its internal ones that are no changelogs. */
    static List<String> read(Admin admin, String app, List<String> topics) throws Exception {
        Stream<String> internal = admin.listTopics().names().get().stream()
                .filter(name -> name.startsWith(app + "-") && !name.endsWith("-changelog"));
        return Stream.concat(topics.stream(), internal).toList();
    }

    /**
     * Tells whether the group's committed offsets are the ends of the topics. Offsets are asked for before ends: what was made of the records
     * before the offsets is in its topics by then.
     */
    static boolean committed(Admin admin, String group, List<String> topics) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> found =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        var wanted = admin.describeTopics(topics).allTopicNames().get().values().stream()
                .flatMap(topic -> topic.partitions().stream().map(p -> new TopicPartition(topic.name(), p.partition())))
                .collect(Collectors.toMap(place -> place, place -> OffsetSpec.latest()));
        for (var end : admin.listOffsets(wanted).all().get().entrySet()) {
            OffsetAndMetadata offset = found.get(end.getKey());
            if ((offset == null ? 0 : offset.offset()) < end.getValue().offset()) return false;
        }
        return true;
    }

    static Serde<Total> totals() {
        return Serdes.serdeFrom((name, total) -> Total.write(total), (name, bytes) -> Total.read(bytes));
    }

    static Serde<JsonNode> json() {
        return Serdes.serdeFrom((name, node) -> bytes(node), (name, bytes) -> parse(bytes));
    }

    private static JsonNode parse(byte[] bytes) {
        try {
            return bytes == null ? null : JSON.readTree(bytes);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static byte[] bytes(JsonNode node) {
        return node == null ? null : node.toString().getBytes(StandardCharsets.UTF_8);
    }
}
