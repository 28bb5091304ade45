import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Runs one operator of Kafka Streams, as one would write it, under the names and to the results of topologies.py: the store "result"
 * holds an n and a total for each row. Speaks the protocol of race.py: works off what its topics hold, is ready, and works off what they
 * hold then. All is visible when the offsets of all that it reads, its internal topics too, are committed up to their ends.
 *
 * <p>Arguments: bootstrap, operator, topics (with commas), guarantee, threads, state folder.
 */
public final class Operators {
    private static final Duration WINDOW = Duration.ofHours(1), GRACE = Duration.ofMinutes(5), GAP = Duration.ofMinutes(15);
    private static final Duration RETENTION = Duration.ofDays(1);

    private static final Serde<String> KEYS = Serdes.String();
    private static final Serde<JsonNode> JSON = CountAndSum.json();
    private static final Serde<CountAndSum.Total> TOTALS = CountAndSum.totals();

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], operator = args[1], app = "bench-" + operator;
        List<String> topics = List.of(args[2].split(","));
        Topology topology = topology(operator, topics);
        Properties settings = CountAndSum.settings(bootstrap, app, args[3], args[4], args[5]);
        try (Admin admin = CountAndSum.admin(bootstrap)) {
            work(topology, settings, admin, app, topics, null);
            System.out.println("{\"event\": \"ready\"}");
            if (!"go".equals(new BufferedReader(new InputStreamReader(System.in)).readLine())) System.exit(2);
            CountAndSum.leave(admin, app);
            work(topology, settings, admin, app, topics, operator);
        }
        System.exit(0);
    }

    private static Topology topology(String operator, List<String> topics) {
        StreamsBuilder builder = new StreamsBuilder();
        switch (operator) {
            case "windowed_count" ->
                stream(builder, topics.get(0))
                        .groupByKey()
                        .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, GRACE))
                        .aggregate(
                                CountAndSum.Total::zero,
                                (key, value, total) -> total.plus(amount(value)),
                                Materialized.<String, CountAndSum.Total, WindowStore<Bytes, byte[]>>as("result")
                                        .withKeySerde(KEYS)
                                        .withValueSerde(TOTALS)
                                        .withRetention(RETENTION));
            case "sessions" ->
                stream(builder, topics.get(0))
                        .groupByKey()
                        .windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, GRACE))
                        .aggregate(
                                CountAndSum.Total::zero,
                                (key, value, total) -> total.plus(amount(value)),
                                (key, one, other) -> one.plus(other),
                                Materialized.<String, CountAndSum.Total, SessionStore<Bytes, byte[]>>as("result")
                                        .withKeySerde(KEYS)
                                        .withValueSerde(TOTALS)
                                        .withRetention(RETENTION));
            case "table_join" ->
                table(builder, topics.get(0)).join(table(builder, topics.get(1)), Operators::pair, result());
            case "stream_table_join" ->
                stream(builder, topics.get(0))
                        .join(
                                table(builder, topics.get(1)),
                                (sale, price) -> amount(sale) * amount(price),
                                Joined.with(KEYS, JSON, JSON))
                        .groupByKey(Grouped.with(KEYS, Serdes.Long()))
                        .aggregate(CountAndSum.Total::zero, (key, amount, total) -> total.plus(amount), result());
            case "foreign_join" ->
                table(builder, topics.get(0))
                        .join(table(builder, topics.get(1)), Operators::other, Operators::pair, result());
            case "regrouped" ->
                table(builder, topics.get(0))
                        .groupBy(
                                (key, value) -> KeyValue.pair(other(value), amount(value)), Grouped.with(KEYS, Serdes.Long()))
                        .aggregate(
                                CountAndSum.Total::zero,
                                (key, amount, total) -> total.plus(amount),
                                (key, amount, total) -> total.minus(amount),
                                result());
            default -> throw new IllegalArgumentException(operator);
        }
        return builder.build();
    }

    private static KStream<String, JsonNode> stream(StreamsBuilder builder, String topic) {
        return builder.stream(topic, Consumed.with(KEYS, JSON));
    }

    private static KTable<String, JsonNode> table(StreamsBuilder builder, String topic) {
        return builder.table(topic, Consumed.with(KEYS, JSON));
    }

    private static Materialized<String, CountAndSum.Total, KeyValueStore<Bytes, byte[]>> result() {
        return Materialized.<String, CountAndSum.Total, KeyValueStore<Bytes, byte[]>>as("result")
                .withKeySerde(KEYS)
                .withValueSerde(TOTALS);
    }

    private static long amount(JsonNode value) {
        return value.get("amount").longValue();
    }

    private static String other(JsonNode value) {
        return value.get("other").textValue();
    }

    private static CountAndSum.Total pair(JsonNode left, JsonNode right) {
        return new CountAndSum.Total(amount(left), amount(left) * amount(right));
    }

    /** Works off what the topics hold; says so, and what the result of an operator adds up to, where one is named. */
    private static void work(
            Topology topology, Properties settings, Admin admin, String app, List<String> topics, String operator)
            throws Exception {
        CountDownLatch first = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(topology, settings)) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) first.countDown();
            });
            streams.start();
            first.await();
            if (operator != null) System.out.println("{\"event\": \"first\"}");
            List<String> read = CountAndSum.read(admin, app, topics);
            while (!CountAndSum.committed(admin, app, read)) Thread.sleep(20);
            if (operator == null) return;
            System.out.println("{\"event\": \"visible\"}");
            long rows = 0, count = 0, amount = 0;
            try (KeyValueIterator<?, CountAndSum.Total> all = rows(streams, operator)) {
                while (all.hasNext()) {
                    CountAndSum.Total total = all.next().value;
                    if (total.count() == 0) continue; // an emptied group stays, at 0
                    rows += 1;
                    count += total.count();
                    amount += total.count() * total.amount();
                }
            }
            System.out.printf("{\"event\": \"answer\", \"keys\": %d, \"records\": %d, \"amount\": %d}%n", rows, count, amount);
        }
    }

    private static KeyValueIterator<?, CountAndSum.Total> rows(KafkaStreams streams, String operator) {
        return switch (operator) {
            case "windowed_count" ->
                streams.store(StoreQueryParameters.fromNameAndType(
                                "result", QueryableStoreTypes.<String, CountAndSum.Total>windowStore()))
                        .all();
            case "sessions" ->
                streams.store(StoreQueryParameters.fromNameAndType(
                                "result", QueryableStoreTypes.<String, CountAndSum.Total>sessionStore()))
                        .fetch(null, null);
            default ->
                streams.store(StoreQueryParameters.fromNameAndType(
                                "result", QueryableStoreTypes.<String, CountAndSum.Total>keyValueStore()))
                        .all();
        };
    }
}
