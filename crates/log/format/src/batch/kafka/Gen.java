// Writes the batches beside it, with Kafka's own code:
//   java -cp "kafka_2.13-4.3.1/libs/*" Gen.java .
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.internal.*;

public class Gen {
    public static void main(String[] args) throws Exception {
        for (CompressionType type : CompressionType.values()) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20),
                RecordBatch.MAGIC_VALUE_V2, Compression.of(type).build(), TimestampType.CREATE_TIME,
                0L, -1L, 4711L, (short) 3, 77, false, -1);
            for (int i = 0; i < 200; i++) {
                byte[] key = i % 3 == 0 ? null : ("key " + i).getBytes();
                byte[] value = i % 5 == 0 ? null : ("the line with number " + i).repeat(1 + i % 7).getBytes();
                Header[] headers = new Header[i % 4];
                for (int j = 0; j < headers.length; j++) {
                    headers[j] = new RecordHeader("h" + j, j == 1 ? null : new byte[] {(byte) j});
                }
                builder.append(1700000000000L + i * (i % 2 == 0 ? 1 : -1), key, value, headers);
            }
            ByteBuffer buffer = builder.build().buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            Files.write(Paths.get(args[0], type.name + ".batch"), bytes);
        }
    }
}
